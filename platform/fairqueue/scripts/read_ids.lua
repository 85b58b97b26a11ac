-- read_ids.lua: read the token ids of what a request released, for the worker that goes on with it.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us unused, '' | 2 request_id | 3 fence
-- RETURNS ids, words of four bytes, or nil when the fence is stale.
-- ATOMIC: the ids are those of the log that the fence's worker continues.

local j = redis.call('HMGET', job_key(ARGV[2]), 'state', 'fence')
if j[1] ~= 'running' or j[2] ~= ARGV[3] then return nil end
return redis.call('GET', prefix .. 'ids:' .. ARGV[2]) or ''
