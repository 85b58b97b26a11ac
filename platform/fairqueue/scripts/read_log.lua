-- read_log.lua: read released frames of a request, with its state.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us unused, '' | 2 request_id | 3 after_seq int | 4 limit int
-- RETURNS {state, epoch, final or '', {frame...}, writers} or nil when unknown. Writers: a line '<epoch> <last seq>' for each attempt before this one that had a log.
-- ATOMIC: frames, state and final are of one moment, so no frame hides behind a final.

local j = redis.call('HMGET', job_key(ARGV[2]), 'state', 'epoch', 'final', 'writers')
if not j[1] then return nil end
local from = tonumber(ARGV[3])
local frames = {}
if tonumber(ARGV[4]) > 0 then
  frames = redis.call('LRANGE', prefix .. 'out:' .. ARGV[2], from, from + tonumber(ARGV[4]) - 1)
end
return {j[1], j[2] or '', j[3] or '', frames, j[4] or ''}
