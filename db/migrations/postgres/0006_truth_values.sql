-- Nothing to do: 0001 and 0002 call them BIGINT here.
SELECT 1;
