-- 1: the request was answered before the checkpoint was taken, so its end is shown, however this process ends.
ALTER TABLE checkpoints ADD COLUMN accepted BIGINT NOT NULL DEFAULT 0;
