-- rebuild.lua: write what counters should hold, from metered usage below a watermark and settlements since; lost holds
--   are settled again from then on.
-- KEYS 1 open holds zset | 2 counters hash
-- ARGV 1 now_ms int, 0 = TIME | 2 prefix of hold keys | 3 until_ms int, when its reading ends
--   | 4 metered_ms int, usage that was recorded until then is in the sums
--   | 5... counters, five each: counter, kind, metered use, of what was admitted before this ms, mark of its window or
--   empty
-- RETURNS the number of counters that changed, or -1 when its reading is over, or another one's began.
-- ATOMIC: nothing that is settled meanwhile is lost or counted twice.
local SLOT_MS, SLOTS = 300000, 32

local function whole(number) return string.format('%.0f', number) end

local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
if redis.call('HGET', KEYS[2], 'reading') ~= ARGV[3] or now >= tonumber(ARGV[3]) then return -1 end
redis.call('HDEL', KEYS[2], 'reading')
local held = {}
for _, request_id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local hold = redis.call('HMGET', ARGV[2] .. request_id, 'charges', 'queued')
  for _, item in ipairs(hold[1] and cmsgpack.unpack(hold[1]) or {}) do
    if item[2] ~= 'r' and (item[2] ~= 'q' or hold[2] == '1') then
      local name = item[1] .. ' ' .. item[5]
      held[name] = (held[name] or 0) + tonumber(item[4])
    end
  end
end
local changed = 0
for i = 5, #ARGV, 5 do
  local name, kind, below, mark = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 3]), ARGV[i + 4]
  local row = redis.call('HMGET', KEYS[2], name .. ':u', name .. ':h', name .. ':w')
  local label, start, finish = string.match(mark, '^(%S+) (%d+) (%d+)$')
  local stored = string.match(row[3] or '', '^%S+')
  -- A window that has begun since, or is over, is left as it stands.
  if kind ~= 'w' or not stored or stored == label then
    local writes = {name .. ':h', whole(held[name .. ' ' .. (label or 'ever')] or 0)}
    if kind == 'w' or kind == 'l' then
      local used = tonumber(ARGV[i + 2])
      for slot = 0, SLOTS - 1 do
        local of, sum = string.match(redis.call('HGET', KEYS[2], name .. ':s' .. slot) or '', '^(%d+) (%d+)$')
        of = tonumber(of or -1) * SLOT_MS
        local inside = kind == 'l' or (of >= tonumber(start) and of < tonumber(finish))
        if of + SLOT_MS > below and inside then used = used + tonumber(sum) end
      end
      local counted = ARGV[i + 3] .. ' ' .. ARGV[4]
      for _, value in ipairs({name .. ':u', whole(used), name .. ':w', mark, name .. ':f', counted}) do
        writes[#writes + 1] = value
      end
      if whole(used) ~= row[1] then changed = changed + 1 end
    elseif writes[2] ~= (row[2] or '0') then
      changed = changed + 1
    end
    redis.call('HSET', KEYS[2], unpack(writes))
  end
end
return changed
