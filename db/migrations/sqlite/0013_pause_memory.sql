-- 0: what the agent pauses at the deadline keeps its disk alone, and boots when it goes on.
ALTER TABLE sandboxes ADD COLUMN pause_memory BIGINT NOT NULL DEFAULT 1;
