SELECT
    model_name,
    service_class,
    price_card_id,
    currency,
    price_input_nano,
    price_cached_nano,
    price_output_nano,
    sum(prompt_tokens - cached_tokens) AS tokens_input,
    sum(cached_tokens) AS tokens_cached,
    sum(completion_tokens) AS tokens_output,
    sum(cost_input) AS amount_input,
    sum(cost_cached) AS amount_cached,
    sum(cost_output) AS amount_output
FROM inference_requests_audit FINAL
WHERE tenant_id = {tenant_id:String}
    AND billed_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')
    AND billed_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND admitted_at >= fromUnixTimestamp64Milli({admitted_from_ms:Int64}, 'UTC')
    AND admitted_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
GROUP BY
    model_name, service_class, price_card_id, currency, price_input_nano, price_cached_nano, price_output_nano
ORDER BY
    model_name, service_class, price_card_id, currency, price_input_nano, price_cached_nano, price_output_nano
