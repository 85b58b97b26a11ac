SELECT
    model_name,
    api_key_id,
    outcome,
    currency,
    countIf(revision = 1) AS requests,
    countIf(revision = 1 AND stopped_by = 'budget') AS budget_stopped_requests,
    sum(prompt_tokens) AS input_tokens,
    sum(cached_tokens) AS cached_tokens,
    sum(completion_tokens) AS output_tokens,
    sum(reasoning_tokens) AS reasoning_tokens,
    sum(cost) AS cost
FROM inference_requests_audit FINAL
WHERE tenant_id = {tenant_id:String}
    AND billed_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')
    AND billed_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND admitted_at >= fromUnixTimestamp64Milli({admitted_from_ms:Int64}, 'UTC')
    AND admitted_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
GROUP BY model_name, api_key_id, outcome, currency
ORDER BY model_name, api_key_id, outcome, currency
