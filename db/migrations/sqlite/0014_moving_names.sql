-- A checkpoint that takes its name over, from whichever has it, once it is ready. Until then its id is its name.
ALTER TABLE checkpoints ADD COLUMN name_when_ready TEXT;
