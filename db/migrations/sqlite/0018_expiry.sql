-- When a stopped sandbox is to be deleted, as its team was told; NULL: it is kept.
ALTER TABLE sandboxes ADD COLUMN expires_at_ms BIGINT;
