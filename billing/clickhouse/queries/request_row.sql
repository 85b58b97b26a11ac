SELECT * EXCEPT (batch_id, ingested_at, version), ttft_ms, itl_ms
FROM inference_requests_audit FINAL
WHERE request_id = {request_id:UUID}
    AND admitted_at >= fromUnixTimestamp64Milli({admitted_from_ms:Int64}, 'UTC')
    AND admitted_at < fromUnixTimestamp64Milli({admitted_to_ms:Int64}, 'UTC')
    AND ({tenant_id:String} = '' OR tenant_id = {tenant_id:String})
    AND revision = 1
LIMIT 1
