-- begin.lua: let the counter of a limit that begins hold what was spent before, whatever it held when it last stood.
-- KEYS 1 counters hash
-- ARGV 1 now_ms int, 0 = TIME | 2 counter | 3 used int
-- RETURNS 1.
-- ATOMIC: counters that were lost are born now, so that what was admitted before is known to be the meter's.
local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('HSET', KEYS[1], 'born', string.format('%.0f', now)) end
redis.call('HSET', KEYS[1], ARGV[2] .. ':u', ARGV[3], ARGV[2] .. ':w', '')
return 1
