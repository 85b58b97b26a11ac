SELECT
    request_id,
    revision,
    tenant_id,
    project_id,
    api_key_id,
    model_name,
    service_class,
    toUnixTimestamp64Milli(admitted_at) AS admitted_ms,
    toUnixTimestamp64Milli(billed_at) AS billed_ms,
    prompt_tokens,
    cached_tokens,
    completion_tokens,
    reasoning_tokens,
    outcome,
    price_card_id,
    price_input_nano,
    price_cached_nano,
    price_output_nano,
    currency,
    cost
FROM inference_requests_audit FINAL
WHERE tenant_id = {tenant_id:String}
    AND billed_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')
    AND billed_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND admitted_at >= fromUnixTimestamp64Milli({admitted_from_ms:Int64}, 'UTC')
    AND admitted_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND (admitted_ms, toString(request_id), revision)
        > ({after_ms:Int64}, {after_id:String}, {after_revision:UInt16})
ORDER BY admitted_ms, toString(request_id), revision
LIMIT {limit:UInt32}
