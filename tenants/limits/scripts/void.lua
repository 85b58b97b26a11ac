-- void.lua: give back all that a request held, if it has not started.
-- KEYS 1 hold hash | 2 open holds zset | 3 counters hash | 4 idempotency hash
-- ARGV 1 now_ms int, 0 = TIME | 2 request_id | 3 idempotency digest that KEYS 4 was named by, or empty | 4 reason
--   | 5 kept_ms int, life of the result
-- RETURNS {"voided"}, also when repeated | {"refused", state} | {"idempotency", digest}: call again with its key.
-- ATOMIC: a hold is never both voided and running, and is given back once.
local GRAINS = 60000

local function whole(number) return string.format('%.0f', number) end

local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function give_back(kind, name, held, label, since, hold_cap)
  local value = redis.call('HMGET', KEYS[3], name .. ':u', name .. ':h', name .. ':w', name .. ':c')
  if kind == 'r' then
    -- What may have drained since is not given back: a refund never buys more than the cap.
    local gone = math.max(tonumber(value[4] or 0), hold_cap) * math.max(0, now - since)
    local used = tonumber(value[1] or 0) - math.max(0, held * GRAINS - gone)
    redis.call('HSET', KEYS[3], name .. ':u', whole(math.max(0, used)))
  elseif kind ~= 'w' or string.match(value[3] or '', '^%S+') == label then
    redis.call('HSET', KEYS[3], name .. ':h', whole(math.max(0, tonumber(value[2] or 0) - held)))
  end
end

local hold = redis.call('HMGET', KEYS[1], 'st', 'ik', 'at', 'charges')
if hold[1] == 'voided' then return {'voided'} end
if hold[1] ~= 'held' then return {'refused', hold[1] or 'unknown'} end
if hold[2] ~= '' and hold[2] ~= ARGV[3] then return {'idempotency', hold[2]} end
for _, item in ipairs(cmsgpack.unpack(hold[4])) do
  give_back(item[2], item[1], tonumber(item[4]), item[5], tonumber(hold[3]), tonumber(item[6]))
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'st', 'voided', 'reason', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('ZREM', KEYS[2], ARGV[2])
if hold[2] ~= '' and redis.call('HGET', KEYS[4], 'rid') == ARGV[2] then
  redis.call('HSET', KEYS[4], 'st', 'voided')
end
return {'voided'}
