-- look.lua: say whether the pool knows a request; leave a tombstone if not.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 request_id | 3 tombstone_ms int
-- RETURNS 1 known or 0 unknown.
-- ATOMIC: what was unknown to a look is never queued, so its hold may be voided.

local rid = ARGV[2]
if redis.call('EXISTS', job_key(rid)) == 1 then return 1 end
local tomb = prefix .. 'tomb:' .. rid
if redis.call('SET', tomb, 'look', 'NX', 'PX', ARGV[3]) == false then redis.call('PEXPIRE', tomb, ARGV[3]) end
return 0
