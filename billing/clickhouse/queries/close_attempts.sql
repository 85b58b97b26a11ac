SELECT
    request_id,
    attempt,
    argMax(prompt_tokens, ended_at) AS prompt_tokens,
    argMax(cached_tokens, ended_at) AS cached_tokens,
    argMax(completion_tokens, ended_at) AS completion_tokens,
    argMax(outcome, ended_at) AS outcome,
    max(toUnixTimestamp64Milli(ended_at)) AS ended_at_ms
FROM attempt_raw FINAL
WHERE tenant_id = {tenant_id:String}
    AND ended_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')
    AND ended_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND (toString(request_id), attempt) > ({after_id:String}, {after_attempt:UInt16})
GROUP BY request_id, attempt
ORDER BY toString(request_id), attempt
LIMIT {limit:UInt32}
