-- Since when an operator has a team disabled, and why, in words that the team reads; NULL: it is not. Nothing of such a team runs or is
-- reached, and nothing of it is deleted.
ALTER TABLE teams ADD COLUMN disabled_at_ms BIGINT;
ALTER TABLE teams ADD COLUMN disabled_reason TEXT CHECK ((disabled_reason IS NULL) = (disabled_at_ms IS NULL));
CREATE INDEX teams_disabled ON teams (id) WHERE disabled_at_ms IS NOT NULL;
