SELECT
    request_id,
    log_key,
    intDiv(toUnixTimestamp64Milli(billed_at), 3600000) * 3600000 AS hour_ms
FROM inference_requests_audit FINAL
WHERE tenant_id = {tenant_id:String}
    AND revision = 1
    AND log_key != ''
    AND billed_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')
    AND billed_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND admitted_at >= fromUnixTimestamp64Milli({admitted_from_ms:Int64}, 'UTC')
    AND admitted_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND toString(request_id) > {after_id:String}
ORDER BY toString(request_id)
LIMIT {limit:UInt32}
