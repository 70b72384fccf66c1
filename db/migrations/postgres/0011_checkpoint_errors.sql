-- Why a checkpoint failed whose request had been answered before.
ALTER TABLE checkpoints ADD COLUMN error_code TEXT;
ALTER TABLE checkpoints ADD COLUMN error_message TEXT;

-- A checkpoint is made once and deleted once; one that could not be made may be shown, one that was lost may turn up again.
DROP TRIGGER checkpoints_transitions ON checkpoints;
CREATE TRIGGER checkpoints_transitions BEFORE UPDATE OF state ON checkpoints FOR EACH ROW
WHEN (NOT (OLD.state = NEW.state
           OR (OLD.state = 'creating' AND NEW.state IN ('ready', 'failed', 'deleted'))
           OR (OLD.state = 'ready' AND NEW.state IN ('failed', 'deleted'))
           OR (OLD.state = 'failed' AND NEW.state IN ('ready', 'deleted'))))
EXECUTE FUNCTION refuse('a checkpoint cannot change its state like this');
