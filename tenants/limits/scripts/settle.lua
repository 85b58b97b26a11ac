-- settle.lua: turn what a request held into what it used; the first settlement stands.
-- KEYS 1 hold hash | 2 open holds zset | 3 counters hash | 4 idempotency hash
-- ARGV 1 now_ms int, 0 = TIME | 2 request_id | 3 idempotency digest that KEYS 4 was named by, or empty
--   | 4 prompt_tokens int | 5 completion_tokens int | 6 cost_nano int | 7 outcome | 8 kept_ms int, life of the result
--   | 9 admitted_at_ms int | 10 body digest | 11 idempotency ttl_ms int
--   | 12... counters to charge when the hold was lost, three each: counter, kind, amount
-- RETURNS {"settled", first, cost text, outcome} | {"idempotency", digest}: call again with its key
--   | {"lost"}: call again with the counters | {"forgotten"}: older than any result is kept, so settled long ago.
-- ATOMIC: concurrency goes down once; no request is charged twice whoever settles.
local GRAINS = 60000

local function whole(number) return string.format('%.0f', number) end

local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local prompt, completion = tonumber(ARGV[4]), tonumber(ARGV[5])
local actual = {['1'] = 1, i = prompt, o = completion, t = prompt + completion, m = tonumber(ARGV[6])}

local function charge(kind, amount, name, held, label, since, hold_cap, lost)
  local value = redis.call('HMGET', KEYS[3], name .. ':u', name .. ':h', name .. ':w', name .. ':c')
  local used, reserved, mark = tonumber(value[1] or 0), tonumber(value[2] or 0), value[3]
  local cap, real = tonumber(value[4] or hold_cap), actual[amount]
  if lost and not mark then return end
  if kind == 'r' then
    mark = mark or whole(now)
    if real >= held then
      used = used + (real - held) * GRAINS
    else
      local gone = math.max(cap, hold_cap) * math.max(0, now - since)
      used = math.max(0, used - math.max(0, (held - real) * GRAINS - gone))
    end
  elseif kind == 'o' then
    local at = tonumber(mark or now)
    used = math.max(0, used - cap * math.max(0, now - at)) + real * GRAINS
    reserved, mark = math.max(0, reserved - held), whole(math.max(at, now))
  elseif kind == 'c' then
    reserved = math.max(0, reserved - held)
  else
    if kind == 'w' then
      local current, start, finish = string.match(mark or '', '^(%S+) (%d+) (%d+)')
      if lost then
        if not current or since < tonumber(start) or since >= tonumber(finish) then return end
      elseif current ~= label then
        return -- its window is over: what it held there is gone with it
      end
    end
    reserved, used = math.max(0, reserved - held), used + real
  end
  redis.call('HSET', KEYS[3], name .. ':u', whole(used), name .. ':h', whole(reserved), name .. ':w', mark or '')
end

local hold = redis.call('HMGET', KEYS[1], 'st', 'cost', 'outcome', 'ik', 'body', 'ttl', 'at', 'charges')
local digest, body, ttl = ARGV[3], ARGV[10], ARGV[11]
if hold[1] == 'settled' then return {'settled', 0, hold[2], hold[3]} end
if hold[1] == 'voided' then return {'settled', 0, '0', 'voided'} end
if hold[1] then
  digest, body, ttl = hold[4], hold[5], hold[6]
  if digest ~= '' and digest ~= ARGV[3] then return {'idempotency', digest} end
  for _, item in ipairs(cmsgpack.unpack(hold[8])) do
    charge(item[2], item[3], item[1], tonumber(item[4]), item[5], tonumber(hold[7]), tonumber(item[6]), false)
  end
else
  local admitted = tonumber(ARGV[9])
  if now - admitted > tonumber(ARGV[8]) then return {'forgotten'} end
  if #ARGV < 12 then return {'lost'} end
  for i = 12, #ARGV, 3 do
    if ARGV[i + 1] ~= 'c' and (ARGV[i + 1] ~= 'r' or now - admitted < GRAINS) then
      charge(ARGV[i + 1], ARGV[i + 2], ARGV[i], 0, '', admitted, 0, true)
    end
  end
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'st', 'settled', 'cost', ARGV[6], 'outcome', ARGV[7])
redis.call('PEXPIRE', KEYS[1], ARGV[8])
redis.call('ZREM', KEYS[2], ARGV[2])
if digest ~= '' then
  local owner = redis.call('HGET', KEYS[4], 'rid')
  if not owner or owner == ARGV[2] then
    redis.call('HSET', KEYS[4], 'rid', ARGV[2], 'body', body, 'st', 'settled')
    redis.call('PEXPIRE', KEYS[4], ttl)
  end
end
return {'settled', 1, ARGV[6], ARGV[7]}
