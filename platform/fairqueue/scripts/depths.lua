-- depths.lua: count what waits, runs and is left to settle, and the finished work of the last two windows.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME
-- RETURNS {waiting, bytes, tenants waiting, running, unsettled, idle workers, dead letters, window x5, tokens}.
-- ATOMIC: all figures are of one moment.

local w = window(ms(clock(ARGV[1])))
local m = redis.call('HMGET', meta, 'waiting_bytes', 'waiting_tokens')
local tenants = redis.call('ZCARD', act) + redis.call('ZCARD', lane_of('batch').act)
return {waiting(), int(m[1]), tenants, redis.call('ZCARD', lease), redis.call('ZCARD', unsettled),
  redis.call('ZCARD', idle), redis.call('XLEN', dead), w[1], w[2], w[3], w[4], w[5], int(m[2])}
