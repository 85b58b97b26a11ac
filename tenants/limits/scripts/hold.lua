-- hold.lua: check every limit of a request, then hold its worst case in all of them, or in none.
-- KEYS 1 hold hash | 2 open holds zset | 3 counters hash | 4 epochs hash | 5 idempotency hash | 6 alerts stream
-- ARGV 1 now_ms int, 0 = TIME | 2 request_id | 3 api_key_id | 4 key_epoch int | 5 tenant_epoch int
--   | 6 enqueue_deadline_ms int | 7 pool | 8 project_id | 9 prompt_tokens int | 10 output_tokens int
--   | 11 cost_nano int | 12 output_nano int, price of one output token | 13 cut int, 1 = may be cut | 14 choices int
--   | 15 idempotency digest or empty | 16 body digest | 17 idempotency ttl_ms int
--   | 18... limits, eight each: counter, kind, amount, cap, window label, start_ms, end_ms, alert percents
-- RETURNS {"granted", now, admitted, deadline, output, cut, (used, held)...} | {"existing", request_id, state, body
--   matches, admitted, output, cut} | {"refused", now, alerts, (fits, used, held)...} | {"stale", now}
--   | {"epoch", "unknown" | "stale" | "key" | "tenant"}
-- ATOMIC: two requests never both take the last of a cap; an idempotency record never stands without its hold.
local GRAINS, MINUTE_MS, DAY_MS, ALERTS_MAX = 60000, 60000, 86400000, 10000

local function whole(number) return string.format('%.0f', number) end

local function verdict(stored, given)
  if not stored then return 'unknown' end
  local epoch = tonumber(stored)
  if given > math.abs(epoch) then return 'newer' end
  if epoch < 0 then return 'blocked' end
  return given == epoch and 'same' or 'stale'
end

local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local born
-- From when on the counters know what was used: before that, after a loss, the meter alone does.
local function begin()
  if not born and redis.call('EXISTS', KEYS[3]) == 0 then redis.call('HSET', KEYS[3], 'born', whole(now)) end
  born = true
end

-- A money limit that not even the shortest answer fits into is spent: told once in its window, under this cap.
local function tell_spent(limit, shortest)
  if limit.cap == 0 or limit.used + shortest <= limit.cap then return 0 end
  local label, cap, told = string.match(redis.call('HGET', KEYS[3], limit.name .. ':a') or '', '^(%S+) (%S+) (%S+)$')
  if label ~= limit.label or cap ~= whole(limit.cap) then told = ',' end
  if string.find(told, ',spent,', 1, true) then return 0 end
  begin()
  redis.call('HSET', KEYS[3], limit.name .. ':a', limit.label .. ' ' .. whole(limit.cap) .. ' ' .. told .. 'spent,')
  redis.call('XADD', KEYS[6], 'MAXLEN', '~', ALERTS_MAX, '*', 'counter', limit.name, 'window', limit.label,
    'told', 'spent', 'cap', whole(limit.cap), 'used', whole(limit.used), 'at', whole(now))
  return 1
end

-- 1. The key and its tenant are still good.
local epochs = redis.call('HMGET', KEYS[4], ARGV[3], 'tenant')
local key, tenant = verdict(epochs[1], tonumber(ARGV[4])), verdict(epochs[2], tonumber(ARGV[5]))
if key == 'blocked' then return {'epoch', 'key'} end
if tenant == 'blocked' then return {'epoch', 'tenant'} end
if key == 'unknown' or tenant == 'unknown' then return {'epoch', 'unknown'} end
if key == 'stale' or tenant == 'stale' then return {'epoch', 'stale'} end

-- 2. Read every counter as it stands now.
local limits, fields = {}, {}
for i = 18, #ARGV, 8 do
  limits[#limits + 1] = {
    name = ARGV[i], kind = ARGV[i + 1], amount = ARGV[i + 2], cap = tonumber(ARGV[i + 3]), label = ARGV[i + 4],
    start = tonumber(ARGV[i + 5]), finish = tonumber(ARGV[i + 6]), alerts = ARGV[i + 7],
  }
  for _, ending in ipairs({':u', ':h', ':w'}) do fields[#fields + 1] = ARGV[i] .. ending end
end
fields[#fields + 1] = 'born'
local values = #limits > 0 and redis.call('HMGET', KEYS[3], unpack(fields)) or {}
born = values[#fields]
for i, limit in ipairs(limits) do
  limit.used, limit.held = tonumber(values[i * 3 - 2] or 0), tonumber(values[i * 3 - 1] or 0)
  local mark = values[i * 3]
  if limit.kind == 'r' or limit.kind == 'o' then
    limit.at = tonumber(mark or now)
    -- A clock that went back drains nothing; one that had been wrong by more than a minute is not waited for.
    if limit.at - now > MINUTE_MS then limit.at = now end
    if now > limit.at then
      limit.used = math.max(0, limit.used - limit.cap * (now - limit.at))
      limit.at = now
    end
    limit.mark = whole(limit.at)
  elseif limit.kind == 'w' then
    if now < limit.start or now >= limit.finish then return {'stale', now} end
    local label, start = string.match(mark or '', '^(%S+) (%d+)')
    -- A later window stays (the tenant moved to a zone further west), unless only a wrong clock explains it.
    if label and label > limit.label and tonumber(start) <= now + DAY_MS then
      limit.label, limit.mark = label, mark
    elseif label == limit.label then
      limit.mark = mark
    else
      limit.used, limit.held = 0, 0
      limit.mark = limit.label .. ' ' .. whole(limit.start) .. ' ' .. whole(limit.finish)
    end
  else
    limit.mark = ''
  end
end

-- 3. A request that has been here holds nothing twice. A voided one gave its idempotency key back.
local record = redis.call('HMGET', KEYS[5], 'rid', 'body', 'st', 'at', 'out', 'cut')
if ARGV[15] ~= '' and record[1] and record[1] ~= ARGV[2] and record[3] ~= 'voided' then
  return {'existing', record[1], record[3], record[2] == ARGV[16] and 1 or 0, tonumber(record[4] or now),
    tonumber(record[5] or 0), tonumber(record[6] or 0)}
end
local known = redis.call('HMGET', KEYS[1], 'st', 'at', 'dl', 'out', 'cut')
if known[1] then
  if known[1] ~= 'held' then
    return {'existing', ARGV[2], known[1], 1, tonumber(known[2] or now), tonumber(known[4] or 0),
      tonumber(known[5] or 0)}
  end
  local answer = {'granted', now, tonumber(known[2]), tonumber(known[3]), tonumber(known[4]), tonumber(known[5])}
  for _, limit in ipairs(limits) do
    answer[#answer + 1] = limit.used
    answer[#answer + 1] = limit.held
  end
  return answer
end

-- 4. Cut the output to what the money limits leave, where the tenant wants that.
local prompt, output, cost = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local price, choices, cut = tonumber(ARGV[12]), tonumber(ARGV[14]), 0
local prompt_cost = cost - output * price
if ARGV[13] == '1' and price > 0 then
  local granted = output
  for _, limit in ipairs(limits) do
    if limit.amount == 'm' then
      granted = math.min(granted, math.floor((limit.cap - limit.used - limit.held - prompt_cost) / price))
    end
  end
  granted = granted - granted % choices
  if granted >= choices and granted < output then
    output, cost, cut = granted, prompt_cost + granted * price, 1
  end
end

-- 5. All limits, or none.
local needs = {['1'] = 1, i = prompt, o = output, t = prompt + output, m = cost}
local fits_all = true
for _, limit in ipairs(limits) do
  local need = needs[limit.amount]
  limit.need = need
  if limit.cap == 0 then
    limit.fits = 0
  elseif need == 0 then
    limit.fits = 1
  elseif limit.kind == 'r' or limit.kind == 'o' then
    limit.fits = limit.used + (limit.held + need) * GRAINS <= limit.cap * GRAINS and 1 or 0
  else
    limit.fits = limit.used + limit.held + need <= limit.cap and 1 or 0
  end
  if limit.fits == 0 then fits_all = false end
end
if not fits_all then
  local answer = {'refused', now, 0}
  for _, limit in ipairs(limits) do
    if limit.fits == 0 and limit.amount == 'm' then
      answer[3] = answer[3] + tell_spent(limit, prompt_cost + choices * price)
    end
    answer[#answer + 1] = limit.fits
    answer[#answer + 1] = limit.used
    answer[#answer + 1] = limit.held
  end
  return answer
end

local answer = {'granted', now, now, tonumber(ARGV[6]), output, cut}
local writes, charges, queued = {}, {}, 0
for _, limit in ipairs(limits) do
  if limit.kind == 'r' then
    limit.used = limit.used + limit.need * GRAINS
  else
    limit.held = limit.held + limit.need
  end
  for ending, value in pairs({
    [':u'] = whole(limit.used), [':h'] = whole(limit.held), [':w'] = limit.mark, [':c'] = whole(limit.cap),
  }) do
    writes[#writes + 1] = limit.name .. ending
    writes[#writes + 1] = value
  end
  charges[#charges + 1] = {
    limit.name, limit.kind, limit.amount, whole(limit.need), limit.label, whole(limit.cap), limit.alerts,
  }
  if limit.kind == 'q' then queued = 1 end
  answer[#answer + 1] = limit.used
  answer[#answer + 1] = limit.held
end
if #writes > 0 then
  begin()
  redis.call('HSET', KEYS[3], unpack(writes))
end
if key == 'newer' then redis.call('HSET', KEYS[4], ARGV[3], ARGV[4]) end
if tenant == 'newer' then redis.call('HSET', KEYS[4], 'tenant', ARGV[5]) end
redis.call('HSET', KEYS[1], 'st', 'held', 'at', whole(now), 'dl', ARGV[6], 'pool', ARGV[7], 'key', ARGV[3],
  'project', ARGV[8], 'in', ARGV[9], 'out', whole(output), 'cost', whole(cost), 'cut', cut, 'queued', queued,
  'ik', ARGV[15], 'body', ARGV[16], 'ttl', ARGV[17], 'charges', cmsgpack.pack(charges))
redis.call('ZADD', KEYS[2], ARGV[6], ARGV[2])
if ARGV[15] ~= '' then
  redis.call('HSET', KEYS[5], 'rid', ARGV[2], 'body', ARGV[16], 'st', 'held', 'at', whole(now),
    'out', whole(output), 'cut', cut)
  redis.call('PEXPIRE', KEYS[5], ARGV[17])
end
return answer
