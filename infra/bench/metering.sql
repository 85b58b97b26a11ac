-- One part of a month of synthetic usage: `rows` rows from number `first` on, spread evenly over `tenants` tenants.
--
-- Sizes follow what real traffic has: long-tailed token counts, a prefix that is often cached, seven buckets of
-- intervals, few models and keys, random ids and durations. Nothing repeats from row to row but what does in life.
INSERT INTO inference_requests_audit
(request_id, revision, tenant_id, project_id, api_key_id, end_user_hash, model_name, pool, endpoint, service_class,
 stream, admitted_at, billed_at, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, delivered_tokens,
 edge_us, guard_us, queue_us, prefill_us, decode_us, output_guard_us, ttft_us, total_us, itl, itl_sum_us, outcome,
 finish_reason, error_code, attempt, worker_id, policy_id, policy_version, verdicts, price_card_id, currency,
 price_input_nano, price_cached_nano, price_output_nano, cost, cost_input, cost_cached, cost_output, log_key, batch_id,
 ingested_at, version)
WITH
    {first:UInt64} + number AS n,
    toUInt64({start_ms:Int64} + intDiv(n * {month_ms:Int64}, {total:UInt64})) AS at_ms,
    cityHash64(n, 1) AS dice,
    dice % {tenants:UInt64} AS tenant,
    cityHash64(tenant, intDiv(dice, 1000) % 12) AS key_seed,
    hex(cityHash64(n, 2)) AS random_bits,
    concat('0198a000-0000-7000-8000-', leftPad(lower(hex(tenant)), 12, '0')) AS tenant_text,
    toInt32(least(exp(5.5 + 1.2 * (randCanonical(n) + randCanonical(n + 1) + randCanonical(n + 2) - 1.5) * 2), 30000)) AS prompt,
    toInt32(if(dice % 3 = 0, 0, intDiv(intDiv(prompt, 16) * (dice % 97), 97) * 16)) AS cached,
    toInt32(least(exp(4.8 + 1.1 * (randCanonical(n + 3) + randCanonical(n + 4) - 1) * 2), 4096)) AS completion,
    toUInt64(8000 + randExponential(0.00002)) AS prefill,
    toUInt64(completion * (9000 + dice % 6000)) AS decode,
    toUInt64(200 + dice % 900) AS edge,
    250 AS price_in, 25 AS price_cached, 2000 AS price_out,
    toDecimal128((prompt - cached) * price_in, 12) / 1000000000 AS amount_in,
    toDecimal128(cached * price_cached, 12) / 1000000000 AS amount_cached,
    toDecimal128(completion * price_out, 12) / 1000000000 AS amount_out
SELECT
    toUUID(concat(
        substring(leftPad(lower(hex(at_ms)), 16, '0'), 5, 8), '-', substring(leftPad(lower(hex(at_ms)), 16, '0'), 13, 4),
        '-7', substring(random_bits, 1, 3), '-a', substring(random_bits, 4, 3), '-',
        substring(hex(cityHash64(n, 3)), 1, 12)
    )),
    1, tenant_text, concat(substring(tenant_text, 1, 34), 'a', toString(dice % 4)),
    lower(hex(MD5(toString(key_seed)))),
    if(dice % 5 = 0, lower(hex(MD5(toString(cityHash64(tenant, dice % 997))))), ''),
    ['small', 'large'][dice % 2 + 1], ['small', 'large'][dice % 2 + 1], 'chat/completions', 'interactive', dice % 4 != 0,
    fromUnixTimestamp64Milli(toInt64(at_ms), 'UTC'),
    fromUnixTimestamp64Milli(toInt64(at_ms + intDiv(prefill + decode, 1000)), 'UTC'),
    prompt, cached, completion, if(dice % 10 = 0, intDiv(completion, 3), 0), completion,
    edge, 300 + dice % 700, toUInt64(randExponential(0.0001)), prefill, decode, dice % 50, prefill + edge + 300,
    prefill + decode + edge + 900,
    CAST(([toUInt16(78), 79, 80, 81, 82, 83, 90],
        arrayMap(part -> toUInt32(intDiv(completion * part, 100) + 1), [5, 15, 40, 25, 10, 4, 1])), 'Map(UInt16, UInt32)'),
    decode, ['ok', 'ok', 'ok', 'ok', 'ok', 'ok', 'ok', 'ok', 'cancelled', 'failed'][dice % 10 + 1],
    ['stop', 'length'][dice % 2 + 1], '', 1, concat('worker-', toString(dice % 8)),
    ['', '0198a000-0000-7000-8000-00000000b001'][dice % 2 + 1], 1, if(dice % 40 = 0, ['regex: flagged'], []),
    '0198a000-0000-7000-8000-00000000c001+0198a000-0000-7000-8000-00000000c002+0198a000-0000-7000-8000-00000000c003',
    'USD', price_in, price_cached, price_out, amount_in + amount_cached + amount_out, amount_in, amount_cached,
    amount_out, '', toUUID(concat('0198a000-0000-4000-8000-', leftPad(lower(hex(intDiv(n, 5000))), 12, '0'))),
    fromUnixTimestamp64Milli(toInt64(at_ms + intDiv(prefill + decode, 1000) + 1000), 'UTC'), 65534
FROM numbers({rows:UInt64})
