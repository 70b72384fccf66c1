-- How many events of each type a team ever had, also of those that are gone. Whoever changes a row holds the team's row in
-- event_counters. Conventions as in 0001.
CREATE TABLE event_totals (
    team_id TEXT   NOT NULL REFERENCES teams (id),
    type    TEXT   NOT NULL,
    number  BIGINT NOT NULL CHECK (number >= 1),
    PRIMARY KEY (team_id, type)
);
INSERT INTO event_totals (team_id, type, number) SELECT team_id, type, COUNT(*) FROM events GROUP BY team_id, type;
