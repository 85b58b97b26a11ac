-- Every attempt that an engine ended, as its worker's attempt log has it: the engine's side of a close, and what failed
-- attempts cost. Nothing is billed from it.
--
-- A line that is taken twice collapses. `ended_at` is the worker's own clock.
CREATE TABLE IF NOT EXISTS attempt_raw ${on_cluster} (
    request_id UUID,
    attempt UInt16,
    fence String CODEC(ZSTD(1)),
    tenant_id String CODEC(ZSTD(1)),
    model_name LowCardinality(String),
    pool LowCardinality(String),
    worker_id LowCardinality(String),
    ended_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    prompt_tokens Int32 CODEC(T64, ZSTD(1)),
    cached_tokens Int32 CODEC(T64, ZSTD(1)),
    completion_tokens Int32 CODEC(T64, ZSTD(1)),
    prefill_us UInt64 CODEC(T64, ZSTD(1)),
    decode_us UInt64 CODEC(T64, ZSTD(1)),
    outcome LowCardinality(String),
    error_code LowCardinality(String),
    version UInt32 DEFAULT 0 CODEC(ZSTD(1))
) ENGINE = ${replacing_by_version}
PARTITION BY toYYYYMM(ended_at)
PRIMARY KEY (tenant_id, toStartOfHour(ended_at))
ORDER BY (tenant_id, toStartOfHour(ended_at), request_id, attempt, fence)
SETTINGS ${deduplication};
