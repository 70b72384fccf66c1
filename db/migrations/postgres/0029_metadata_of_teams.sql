-- A team finds its sandboxes by a pair of their metadata without going through those of others: an entry names the team, and the
-- index has, for each pair, the ids in the order of a list. What is destroyed has no metadata.
DELETE FROM sandbox_metadata WHERE sandbox_id IN (SELECT id FROM sandboxes WHERE state = 'destroyed');
ALTER TABLE sandbox_metadata ADD COLUMN team_id TEXT REFERENCES teams (id);
UPDATE sandbox_metadata m SET team_id = s.team_id FROM sandboxes s WHERE s.id = m.sandbox_id;
ALTER TABLE sandbox_metadata ALTER COLUMN team_id SET NOT NULL;
DROP INDEX sandbox_metadata_by_value;
CREATE INDEX sandbox_metadata_by_value ON sandbox_metadata (team_id, key, value, sandbox_id);

-- What belongs to a sandbox and stands in tables of its own, a row for each sandbox: an object, a policy and a list, all JSON.
CREATE VIEW sandbox_documents AS
SELECT s.id AS sandbox_id,
       (SELECT json_object_agg(m.key, m.value)::TEXT FROM sandbox_metadata m WHERE m.sandbox_id = s.id) AS metadata,
       (SELECT p.policy FROM sandbox_policies p WHERE p.sandbox_id = s.id) AS policy,
       (SELECT json_agg(json_build_object('path', m.path, 'volume', m.volume_id, 'name', v.name))::TEXT
        FROM sandbox_volumes m JOIN volumes v ON v.id = m.volume_id WHERE m.sandbox_id = s.id) AS volume_mounts
FROM sandboxes s;
