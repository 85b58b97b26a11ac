-- One row for each terminal request revision: the source of every report, and of every bill.
--
-- Every column of the sort and partition keys is fixed once per request, so a row that arrives twice collapses.
-- Revision 1 is the request; a later revision is a signed difference, so that sums stay right.
-- `version` prefers the lowest attempt. Durations are microseconds; ttft_ms and itl_ms are computed from them.
CREATE TABLE IF NOT EXISTS inference_requests_audit ${on_cluster} (
    request_id UUID,
    revision UInt16,
    tenant_id String CODEC(ZSTD(1)),
    project_id String CODEC(ZSTD(1)),
    api_key_id String CODEC(ZSTD(1)),
    end_user_hash String CODEC(ZSTD(1)),
    model_name LowCardinality(String),
    pool LowCardinality(String),
    endpoint LowCardinality(String),
    service_class LowCardinality(String),
    stream Bool,
    admitted_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    billed_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    prompt_tokens Int32 CODEC(T64, ZSTD(1)),
    cached_tokens Int32 CODEC(T64, ZSTD(1)),
    completion_tokens Int32 CODEC(T64, ZSTD(1)),
    reasoning_tokens Int32 CODEC(T64, ZSTD(1)),
    delivered_tokens Int32 CODEC(T64, ZSTD(1)),
    edge_us UInt64 CODEC(T64, ZSTD(1)),
    guard_us UInt64 CODEC(T64, ZSTD(1)),
    queue_us UInt64 CODEC(T64, ZSTD(1)),
    prefill_us UInt64 CODEC(T64, ZSTD(1)),
    decode_us UInt64 CODEC(T64, ZSTD(1)),
    output_guard_us UInt64 CODEC(T64, ZSTD(1)),
    ttft_us UInt64 CODEC(T64, ZSTD(1)),
    total_us UInt64 CODEC(T64, ZSTD(1)),
    itl Map(UInt16, UInt32) CODEC(ZSTD(1)) COMMENT 'logarithmic histogram: bucket -> number of intervals',
    itl_sum_us UInt64 CODEC(T64, ZSTD(1)),
    outcome LowCardinality(String),
    finish_reason LowCardinality(String),
    error_code LowCardinality(String),
    attempt UInt16,
    worker_id LowCardinality(String),
    policy_id LowCardinality(String),
    policy_version UInt32,
    verdicts Array(LowCardinality(String)),
    price_card_id LowCardinality(String),
    currency LowCardinality(String),
    price_input_nano Int64 CODEC(ZSTD(1)) COMMENT 'nano-units per token, as chosen at admission',
    price_cached_nano Int64 CODEC(ZSTD(1)),
    price_output_nano Int64 CODEC(ZSTD(1)),
    cost Decimal(38, 12) CODEC(ZSTD(1)) COMMENT 'currency units; the sum of the three parts below',
    cost_input Decimal(38, 12) CODEC(ZSTD(1)),
    cost_cached Decimal(38, 12) CODEC(ZSTD(1)),
    cost_output Decimal(38, 12) CODEC(ZSTD(1)),
    log_key String CODEC(ZSTD(1)) COMMENT 'evaluation log object of a tenant that opted in',
    batch_id UUID CODEC(ZSTD(1)),
    ingested_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    version UInt32 CODEC(ZSTD(1)),
    ttft_ms Float64 ALIAS ttft_us / 1000,
    itl_count UInt64 ALIAS arraySum(mapValues(itl)),
    itl_ms Float64 ALIAS if(empty(itl), 0, itl_sum_us / arraySum(mapValues(itl)) / 1000),
    CONSTRAINT parts_within_their_whole CHECK revision > 1
        OR (cached_tokens BETWEEN 0 AND prompt_tokens AND reasoning_tokens BETWEEN 0 AND completion_tokens AND cost >= 0),
    CONSTRAINT cost_is_the_sum_of_its_parts CHECK cost = cost_input + cost_cached + cost_output
) ENGINE = ${replacing_by_version}
PARTITION BY toYYYYMM(admitted_at)
PRIMARY KEY (tenant_id, toStartOfHour(admitted_at))
ORDER BY (tenant_id, toStartOfHour(admitted_at), request_id, revision)
SETTINGS ${deduplication};
