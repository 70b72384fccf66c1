-- 1: what the sandbox's processes write becomes entries of its log.
ALTER TABLE sandboxes ADD COLUMN capture_output BIGINT NOT NULL DEFAULT 0;
