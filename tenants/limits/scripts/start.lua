-- start.lua: mark a hold as running under a fence, before the first token; it waits in no queue from then on.
-- KEYS 1 hold hash | 2 open holds zset | 3 counters hash
-- ARGV 1 now_ms int, 0 = TIME | 2 request_id | 3 fence | 4 attempt int | 5 look_ms int, when to look at it again
-- RETURNS 1 when it runs under this fence, 0 when it is voided, settled, unknown or runs under a later attempt.
-- ATOMIC: a hold is never both voided and running; it leaves the count of queued requests once.
local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local hold = redis.call('HMGET', KEYS[1], 'st', 'attempt', 'queued')
if hold[1] ~= 'held' and hold[1] ~= 'running' then return 0 end
if hold[2] and tonumber(hold[2]) > tonumber(ARGV[4]) then return 0 end
if hold[3] == '1' then
  for _, item in ipairs(cmsgpack.unpack(redis.call('HGET', KEYS[1], 'charges'))) do
    if item[2] == 'q' then
      local held = tonumber(redis.call('HGET', KEYS[3], item[1] .. ':h') or 0)
      redis.call('HSET', KEYS[3], item[1] .. ':h', string.format('%.0f', math.max(0, held - tonumber(item[4]))))
    end
  end
end
redis.call('HSET', KEYS[1], 'st', 'running', 'fence', ARGV[3], 'attempt', ARGV[4], 'queued', '0')
redis.call('ZADD', KEYS[2], string.format('%.0f', now + tonumber(ARGV[5])), ARGV[2])
return 1
