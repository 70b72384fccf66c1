-- Banks, whose method is empty, and mobile money operators of files that are being imported, until they are put in place.
CREATE TABLE import_rows (
    import_id         TEXT   NOT NULL,
    number            BIGINT NOT NULL,
    staged_at_ms      BIGINT NOT NULL,
    method            TEXT   NOT NULL,
    country_code      TEXT   NOT NULL,
    code              TEXT   NOT NULL,
    name              TEXT   NOT NULL,
    traffic_verticals TEXT   NOT NULL,
    customer_segments TEXT   NOT NULL,
    PRIMARY KEY (import_id, number)
);
