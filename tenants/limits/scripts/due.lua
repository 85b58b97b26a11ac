-- due.lua: list open holds whose time to be looked at has come, and put their next look off.
-- KEYS 1 open holds zset
-- ARGV 1 now_ms int, 0 = TIME | 2 margin_ms int | 3 limit int | 4 again_ms int
-- RETURNS request ids, oldest first.
-- ATOMIC: two sweepers share the work instead of doubling it.
local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local until_ms = string.format('%.0f', now - tonumber(ARGV[2]))
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', until_ms, 'LIMIT', 0, ARGV[3])
local again = string.format('%.0f', now + tonumber(ARGV[4]))
for _, request_id in ipairs(found) do redis.call('ZADD', KEYS[1], 'XX', again, request_id) end
return found
