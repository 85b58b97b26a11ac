SELECT
    intDiv(toUnixTimestamp64Milli(billed_at), 3600000) * 3600000 AS hour_ms,
    currency,
    count() AS requests,
    sum(prompt_tokens) AS prompt_tokens,
    sum(cached_tokens) AS cached_tokens,
    sum(completion_tokens) AS completion_tokens,
    sum(cost) AS cost,
    groupBitXor(reinterpretAsInt64(reverse(substring(
        MD5(concat(toString(request_id), '/', toString(revision))), 1, 8
    )))) AS fingerprint
FROM inference_requests_audit FINAL
WHERE tenant_id = {tenant_id:String}
    AND billed_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')
    AND billed_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND admitted_at >= fromUnixTimestamp64Milli({admitted_from_ms:Int64}, 'UTC')
    AND admitted_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
GROUP BY hour_ms, currency
ORDER BY hour_ms, currency
