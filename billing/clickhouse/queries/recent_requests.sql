SELECT * EXCEPT (batch_id, ingested_at, version), ttft_ms, itl_ms
FROM inference_requests_audit FINAL
WHERE ({tenant_id:String} = '' OR tenant_id = {tenant_id:String})
    AND admitted_at <= fromUnixTimestamp64Milli({before_ms:Int64}, 'UTC')
    AND (admitted_at < fromUnixTimestamp64Milli({before_ms:Int64}, 'UTC') OR toString(request_id) < {before_id:String})
    AND revision = 1
ORDER BY admitted_at DESC, toString(request_id) DESC
LIMIT {limit:UInt32}
