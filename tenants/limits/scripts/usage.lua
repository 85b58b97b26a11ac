-- usage.lua: read counters as they stand, with the slot's own time.
-- KEYS 1 counters hash
-- ARGV 1 now_ms int, 0 = TIME | 2... counter names
-- RETURNS {now, {used, held, mark, cap}...}, each text or nil.
-- ATOMIC: all counters at one instant.
local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local answer = {now}
for i = 2, #ARGV do
  local name = ARGV[i]
  answer[#answer + 1] = redis.call('HMGET', KEYS[1], name .. ':u', name .. ':h', name .. ':w', name .. ':c')
end
return answer
