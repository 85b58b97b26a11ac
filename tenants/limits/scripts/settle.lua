-- settle.lua: turn what a request held into what it used; the first settlement stands.
-- KEYS 1 hold hash | 2 open holds zset | 3 counters hash | 4 idempotency hash | 5 alerts stream
-- ARGV 1 now_ms int, 0 = TIME | 2 request_id | 3 idempotency digest that KEYS 4 was named by, or empty
--   | 4 prompt_tokens int | 5 completion_tokens int | 6 cost_nano int | 7 outcome | 8 kept_ms int, life of the result
--   | 9 admitted_at_ms int | 10 body digest | 11 idempotency ttl_ms int | 12 ended_at_ms int, 0 = not known
--   | 13... counters to charge when the hold was lost, three each: counter, kind, amount
-- RETURNS {"settled", first, cost text, outcome, alerts} | {"idempotency", digest}: call again with its key
--   | {"lost"}: call again with the counters | {"later"}: a lost hold, while a rebuild reads
--   | {"forgotten"}: older than any result is kept, so settled long ago.
-- ATOMIC: concurrency goes down once; no request is charged twice whoever settles; an alert is told once in its window.
local GRAINS, ALERTS_MAX = 60000, 10000
-- What was settled lately, by the time of admission: so a counter can be compared with metered usage below a watermark.
local SLOT_MS, SLOTS, READING_MS_MAX = 300000, 32, 60000

local function whole(number) return string.format('%.0f', number) end

local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local prompt, completion, ended = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[12])
local actual = {['1'] = 1, i = prompt, o = completion, t = prompt + completion, m = tonumber(ARGV[6])}

local told_now = 0

local function tell(name, label, cap, used, what)
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', ALERTS_MAX, '*', 'counter', name, 'window', label, 'told', what,
    'cap', whole(cap), 'used', whole(used), 'at', whole(now))
  told_now = told_now + 1
end

-- Percents of a cap that this settlement crossed; each is told once in its window, under this cap.
local function alert(name, label, cap, used, percents)
  local window, of, told = string.match(redis.call('HGET', KEYS[3], name .. ':a') or '', '^(%S+) (%S+) (%S+)$')
  if window ~= label or of ~= whole(cap) then told = ',' end
  local before = told
  for percent in string.gmatch(percents, '%d+') do
    if used >= cap * tonumber(percent) / 100 and not string.find(told, ',' .. percent .. ',', 1, true) then
      told = told .. percent .. ','
      tell(name, label, cap, used, percent)
    end
  end
  if used >= cap and not string.find(told, ',spent,', 1, true) then
    told = told .. 'spent,'
    tell(name, label, cap, used, 'spent')
  end
  if told ~= before then redis.call('HSET', KEYS[3], name .. ':a', label .. ' ' .. whole(cap) .. ' ' .. told) end
end

local function keep_late(name, since, real)
  local slot = math.floor(since / SLOT_MS)
  local field = name .. ':s' .. (slot % SLOTS)
  local of, sum = string.match(redis.call('HGET', KEYS[3], field) or '', '^(%d+) (%d+)$')
  if of ~= whole(slot) then sum = 0 end
  redis.call('HSET', KEYS[3], field, whole(slot) .. ' ' .. whole(tonumber(sum) + real))
end

-- One entry of a hold's charges: {counter, kind, amount, held, window label, cap, alert percents}.
local function charge(item, since, lost)
  local name, kind, amount, held, label = item[1], item[2], item[3], tonumber(item[4]), item[5]
  local hold_cap, percents = tonumber(item[6]), item[7]
  local value = redis.call('HMGET', KEYS[3], name .. ':u', name .. ':h', name .. ':w', name .. ':c', name .. ':f',
    'born')
  local used, reserved, mark = tonumber(value[1] or 0), tonumber(value[2] or 0), value[3]
  local cap, real = tonumber(value[4] or hold_cap), actual[amount]
  if lost and not mark then return end
  -- A rebuild has counted it, from the meter: it was admitted, and its usage recorded, before what that looked at.
  local before, metered = string.match(value[5] or '', '^(%d+) ?(%d*)$')
  metered = tonumber(metered) or tonumber(before) -- as it was written before it told both
  if lost and before and since < tonumber(before) and ended > 0 and ended <= metered then return end
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
  elseif kind == 'c' or kind == 'q' then
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
    if real > 0 and since >= tonumber(value[6] or 0) then keep_late(name, since, real) end
    if amount == 'm' and not lost then alert(name, label, cap, used, percents) end
  end
  redis.call('HSET', KEYS[3], name .. ':u', whole(used), name .. ':h', whole(reserved), name .. ':w', mark or '')
end

local hold = redis.call('HMGET', KEYS[1], 'st', 'cost', 'outcome', 'ik', 'body', 'ttl', 'at', 'charges', 'queued')
local digest, body, ttl = ARGV[3], ARGV[10], ARGV[11]
if hold[1] == 'settled' then return {'settled', 0, hold[2], hold[3], 0} end
if hold[1] == 'voided' then return {'settled', 0, '0', 'voided', 0} end
if hold[1] then
  digest, body, ttl = hold[4], hold[5], hold[6]
  if digest ~= '' and digest ~= ARGV[3] then return {'idempotency', digest} end
  for _, item in ipairs(cmsgpack.unpack(hold[8])) do
    if item[2] ~= 'q' or hold[9] == '1' then
      charge(item, tonumber(hold[7]), false)
    end
  end
else
  local admitted = tonumber(ARGV[9])
  if now - admitted > tonumber(ARGV[8]) then return {'forgotten'} end
  -- Whether the meter's sums have it is not known before they are written. A clock that went back ends the wait.
  local reading = tonumber(redis.call('HGET', KEYS[3], 'reading') or 0)
  if now < reading and reading - now <= READING_MS_MAX then return {'later'} end
  if #ARGV < 13 then return {'lost'} end
  for i = 13, #ARGV, 3 do
    local kind = ARGV[i + 1]
    if kind ~= 'c' and kind ~= 'q' and (kind ~= 'r' or now - admitted < GRAINS) then
      charge({ARGV[i], kind, ARGV[i + 2], '0', '', '0', ''}, admitted, true)
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
return {'settled', 1, ARGV[6], ARGV[7], told_now}
