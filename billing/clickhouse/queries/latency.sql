SELECT
    count() AS requests,
    sum(completion_tokens) AS output_tokens,
    quantilesTDigestIf(0.5, 0.9, 0.99)(ttft_us, ttft_us > 0) AS ttft_quantiles_us,
    countIf(ttft_us > 0) AS ttft_count,
    sumMap(itl) AS itl
FROM inference_requests_audit FINAL
WHERE ({tenant_id:String} = '' OR tenant_id = {tenant_id:String})
    AND ({model:String} = '' OR model_name = {model:String})
    AND admitted_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')
    AND admitted_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND revision = 1
