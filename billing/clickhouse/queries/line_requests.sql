SELECT
    request_id,
    revision,
    multiIf(
        {meter:String} = 'input', prompt_tokens - cached_tokens,
        {meter:String} = 'cached', cached_tokens,
        completion_tokens
    ) AS tokens,
    multiIf(
        {meter:String} = 'input', cost_input,
        {meter:String} = 'cached', cost_cached,
        cost_output
    ) AS amount
FROM inference_requests_audit FINAL
WHERE tenant_id = {tenant_id:String}
    AND billed_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')
    AND billed_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND admitted_at >= fromUnixTimestamp64Milli({admitted_from_ms:Int64}, 'UTC')
    AND admitted_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND model_name = {model:String}
    AND service_class = {service_class:String}
    AND splitByChar('+', price_card_id)[{place:UInt8}] = {price_id:String}
    AND tokens != 0
    AND (toString(request_id), revision) > ({after_id:String}, {after_revision:UInt16})
ORDER BY toString(request_id), revision
LIMIT {limit:UInt32}
