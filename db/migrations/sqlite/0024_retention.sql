-- When checkpoints, volumes and versions of templates are to be deleted, as their team was told; NULL: they are kept. And when each
-- was last seen in use, to an hour; NULL: never, since plans may keep them for some days.
ALTER TABLE checkpoints ADD COLUMN expires_at_ms BIGINT;
ALTER TABLE checkpoints ADD COLUMN last_used_at_ms BIGINT;
ALTER TABLE volumes ADD COLUMN expires_at_ms BIGINT;
ALTER TABLE volumes ADD COLUMN last_used_at_ms BIGINT;
ALTER TABLE template_versions ADD COLUMN expires_at_ms BIGINT;
ALTER TABLE template_versions ADD COLUMN last_used_at_ms BIGINT;
