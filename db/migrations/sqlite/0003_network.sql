-- Network policies: what a sandbox may reach. Conventions as in 0001 and 0002.

-- A policy is recorded before the agent hears of it, under a version that grows with every change. What is not at the agent
-- yet is sent until it is, so that a change outlives this process and an agent that is away.
ALTER TABLE sandboxes ADD COLUMN network_version BIGINT NOT NULL DEFAULT 1 CHECK (network_version >= 1);
-- The version that is in force, as the agent last said; 0 before it said anything. Smaller than `network_version`: pending.
ALTER TABLE sandboxes ADD COLUMN network_applied BIGINT NOT NULL DEFAULT 0
    CHECK (network_applied BETWEEN 0 AND network_version);
-- Why the newest version is not in force, as far as the agent said.
ALTER TABLE sandboxes ADD COLUMN network_error TEXT;

-- What is to be sent; nearly always nothing.
CREATE INDEX sandboxes_network_pending ON sandboxes (id)
    WHERE network_applied < network_version AND state NOT IN ('creating', 'failed', 'destroyed');

-- The newest policy of each sandbox that is not destroyed. In a table of its own, for it may be long, and the
-- synchronisation reads all sandboxes every second.
CREATE TABLE sandbox_policies (
    sandbox_id TEXT NOT NULL PRIMARY KEY REFERENCES sandboxes (id),
    policy     TEXT NOT NULL
);
-- Sandboxes from before this migration have no network, and get no more than that by it.
INSERT INTO sandbox_policies (sandbox_id, policy)
SELECT id, '{"allow_internet_access":false}' FROM sandboxes WHERE state <> 'destroyed';

-- An older policy never takes the place of a newer one.
CREATE TRIGGER sandboxes_network_version BEFORE UPDATE OF network_version ON sandboxes
WHEN NEW.network_version < OLD.network_version
BEGIN
    SELECT RAISE(ABORT, 'the version of a network policy only grows');
END;
