-- restate.lua: put the usage of a request on the stream again that ended before the pool lost it, as its worker wrote it down.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us unused, '' | 2 request_id | 3 ttl_ms int | 4 fields msgpack list of name and value in turn
-- RETURNS 1, or 0 where the pool knows the request, or has done this before.
-- ATOMIC: what is restated is never queued after it; a repeat within the time of tombstones adds nothing.

local rid, ttl = ARGV[2], ARGV[3]
if redis.call('EXISTS', job_key(rid)) == 1 then return 0 end
if not redis.call('SET', prefix .. 'again:' .. rid, '1', 'NX', 'PX', ttl) then return 0 end
redis.call('SET', prefix .. 'tomb:' .. rid, 'restated', 'PX', ttl)
redis.call('XADD', usage, '*', unpack(cmsgpack.unpack(ARGV[4])))
return 1
