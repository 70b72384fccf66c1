-- A team finds its sandboxes by a pair of their metadata without going through those of others: an entry names the team, and the
-- index has, for each pair, the ids in the order of a list. What is destroyed has no metadata.
CREATE TABLE metadata_of_teams (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id),
    team_id    TEXT NOT NULL REFERENCES teams (id),
    key        TEXT NOT NULL,
    value      TEXT NOT NULL,
    PRIMARY KEY (sandbox_id, key)
);
INSERT INTO metadata_of_teams (sandbox_id, team_id, key, value)
SELECT m.sandbox_id, s.team_id, m.key, m.value FROM sandbox_metadata m
JOIN sandboxes s ON s.id = m.sandbox_id WHERE s.state <> 'destroyed';
DROP TABLE sandbox_metadata;
ALTER TABLE metadata_of_teams RENAME TO sandbox_metadata;
CREATE INDEX sandbox_metadata_by_value ON sandbox_metadata (team_id, key, value, sandbox_id);

-- What belongs to a sandbox and stands in tables of its own, a row for each sandbox: an object, a policy and a list, all JSON.
CREATE VIEW sandbox_documents AS
SELECT s.id AS sandbox_id,
       (SELECT json_object_agg(m.key, m.value)::TEXT FROM sandbox_metadata m WHERE m.sandbox_id = s.id) AS metadata,
       (SELECT p.policy FROM sandbox_policies p WHERE p.sandbox_id = s.id) AS policy,
       (SELECT json_agg(json_build_object('path', m.path, 'volume', m.volume_id, 'name', v.name))::TEXT
        FROM sandbox_volumes m JOIN volumes v ON v.id = m.volume_id WHERE m.sandbox_id = s.id) AS volume_mounts
FROM sandboxes s;
