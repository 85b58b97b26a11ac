SELECT
    intDiv(toUnixTimestamp64Milli(billed_at), 3600000) * 3600000 AS hour_ms,
    count() AS requests,
    sum(prompt_tokens) + sum(completion_tokens) AS tokens
FROM inference_requests_audit FINAL
WHERE tenant_id = {tenant_id:String}
    AND pool = {pool:String}
    AND revision = 1
    AND billed_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')
    AND billed_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND admitted_at >= fromUnixTimestamp64Milli({admitted_from_ms:Int64}, 'UTC')
    AND admitted_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
GROUP BY hour_ms
