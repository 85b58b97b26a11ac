-- leave.lua: a worker stops claiming: out of the idle set, its unused wake passed on.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 worker_id
-- RETURNS 1 when a wake was passed on, else 0.
-- ATOMIC: no wake stays with a worker that will not use it.

local now = clock(ARGV[1])
forget(ARGV[2])
redis.call('HDEL', alone, ARGV[2])
if awake(ARGV[2]) == 1 and waiting() > 0 then return wake_one(ms(now)) end
return 0
