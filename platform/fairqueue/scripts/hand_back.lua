-- hand_back.lua: take a claimed request back from a worker that drains.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 worker_id | 3 request_id | 4 fence
-- RETURNS 1, or 0 when the fence is stale.
-- ATOMIC: the request is at its old place or ended before the worker's slot counts as free.

local now = clock(ARGV[1])
local rid = ARGV[3]
local j = redis.call('HMGET', job_key(rid), 'state', 'fence')
if j[1] ~= 'running' or j[2] ~= ARGV[4] then return 0 end
give_up(rid, now, 'back')
return 1
