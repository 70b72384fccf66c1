-- What is deleted some time after its end: by the end, and looking whether a replay still names it, which the reference from
-- replays does as well.
CREATE INDEX webhook_deliveries_ended ON webhook_deliveries (ended_at_ms) WHERE ended_at_ms IS NOT NULL;
CREATE INDEX webhook_deliveries_replays ON webhook_deliveries (replay_of) WHERE replay_of IS NOT NULL;
