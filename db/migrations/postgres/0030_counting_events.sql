-- Each event that is written adds to its team's totals: a statement less in every transaction that tells of something.
CREATE FUNCTION events_count() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO event_totals (team_id, type, number) VALUES (NEW.team_id, NEW.type, 1)
    ON CONFLICT (team_id, type) DO UPDATE SET number = event_totals.number + 1;
    RETURN NULL;
END
$$;
CREATE TRIGGER events_count AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION events_count();
