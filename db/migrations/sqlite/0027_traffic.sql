-- What went through the networks of sandboxes while they ran. Each interval of `usage_intervals` has a part for each hour in which
-- something did.
CREATE TABLE usage_traffic (
    interval_id   TEXT   NOT NULL,
    -- Where the part begins: with the hour, or with the interval where that is later.
    from_ms       BIGINT NOT NULL,
    -- As in `usage_intervals`.
    team_id       TEXT,
    sandbox_id    TEXT   NOT NULL,
    -- Since the interval began, as of the last reading within the part: what went through in the part is what this is more than the
    -- part before has.
    egress_bytes  BIGINT NOT NULL CHECK (egress_bytes >= 0),
    ingress_bytes BIGINT NOT NULL CHECK (ingress_bytes >= 0),
    PRIMARY KEY (interval_id, from_ms)
);
CREATE INDEX usage_traffic_of_team ON usage_traffic (team_id, from_ms);
