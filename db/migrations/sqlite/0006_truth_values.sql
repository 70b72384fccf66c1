-- The columns that 0001 and 0002 call BOOLEAN become what they are in PostgreSQL, since the driver that speaks to both
-- databases reads no column of that name. What they hold stays as it is, 0 or 1: for such a change SQLite lets its schema be
-- edited (https://www.sqlite.org/lang_altertable.html, section 7).
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql =
    replace(replace(replace(replace(replace(sql,
        'runnable      BOOLEAN NOT NULL', 'runnable      BIGINT  NOT NULL CHECK (runnable IN (0, 1))'),
        'auto_resume          BOOLEAN NOT NULL', 'auto_resume          BIGINT  NOT NULL CHECK (auto_resume IN (0, 1))'),
        'allow_public_traffic BOOLEAN NOT NULL',
        'allow_public_traffic BIGINT  NOT NULL CHECK (allow_public_traffic IN (0, 1))'),
        'memory           BOOLEAN NOT NULL', 'memory           BIGINT  NOT NULL CHECK (memory IN (0, 1))'),
        'NOT auto_resume OR', 'auto_resume = 0 OR')
    WHERE type = 'table' AND name IN ('template_versions', 'sandboxes', 'checkpoints');
-- Read anew.
PRAGMA writable_schema = RESET;
