SELECT
    request_id,
    revision,
    intDiv(toUnixTimestamp64Milli(billed_at), 3600000) * 3600000 AS hour_ms,
    currency,
    prompt_tokens,
    cached_tokens,
    completion_tokens,
    cost,
    attempt,
    worker_id,
    outcome
FROM inference_requests_audit FINAL
WHERE tenant_id = {tenant_id:String}
    AND billed_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')
    AND billed_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND admitted_at >= fromUnixTimestamp64Milli({admitted_from_ms:Int64}, 'UTC')
    AND admitted_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND (toString(request_id), revision) > ({after_id:String}, {after_revision:UInt16})
ORDER BY toString(request_id), revision
LIMIT {limit:UInt32}
