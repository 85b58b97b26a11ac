SELECT
    project_id,
    api_key_id,
    model_name,
    sum(prompt_tokens) + sum(completion_tokens) AS tokens,
    sum(cost) AS cost
FROM inference_requests_audit FINAL
WHERE tenant_id = {tenant_id:String}
    AND revision = 1
    AND admitted_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')
    AND admitted_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND billed_at <= fromUnixTimestamp64Milli({billed_ms:Int64}, 'UTC')
GROUP BY project_id, api_key_id, model_name
ORDER BY project_id, api_key_id, model_name
