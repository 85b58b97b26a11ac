-- audit.lua: read counters with what they should hold for open requests, and the watermark below which all is settled;
--   for a rebuild, put off the settlement of lost holds until it is done.
-- KEYS 1 open holds zset | 2 counters hash
-- ARGV 1 now_ms int, 0 = TIME | 2 prefix of hold keys | 3 most open holds that are looked at
--   | 4 reading_ms int, how long a rebuild may read; 0 = none follows | 5... counter names
-- RETURNS {now, watermark_ms, or -1 when it cannot be told; {used, held, mark, cap, rebuilt_ms, settled at or after the
--   watermark, held by open requests}...}, texts or nil but the last two.
-- ATOMIC: counters, recent settlements and open holds at one instant, from which on no lost hold is settled.
local SLOT_MS, SLOTS = 300000, 32

local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local open = redis.call('ZRANGE', KEYS[1], 0, ARGV[3])
local oldest, held = now, {}
if #open > tonumber(ARGV[3]) then return {now, -1} end
for _, request_id in ipairs(open) do
  local hold = redis.call('HMGET', ARGV[2] .. request_id, 'at', 'charges', 'queued')
  if hold[2] then
    oldest = math.min(oldest, tonumber(hold[1]))
    for _, item in ipairs(cmsgpack.unpack(hold[2])) do
      if item[2] ~= 'r' and (item[2] ~= 'q' or hold[3] == '1') then
        local name = item[1] .. ' ' .. item[5]
        held[name] = (held[name] or 0) + tonumber(item[4])
      end
    end
  end
end
local first = math.floor(oldest / SLOT_MS)
local watermark = math.max(first * SLOT_MS, tonumber(redis.call('HGET', KEYS[2], 'born') or 0))
-- No counter at all: whatever was admitted until now is known to the meter alone.
local lost = redis.call('EXISTS', KEYS[2]) == 0
if lost then watermark = now + 1 end
local answer = {now, watermark}
if math.floor(now / SLOT_MS) - first >= SLOTS - 1 then answer[2] = -1 end
if ARGV[4] ~= '0' and answer[2] >= 0 then
  if lost then redis.call('HSET', KEYS[2], 'born', string.format('%.0f', watermark)) end
  redis.call('HSET', KEYS[2], 'reading', string.format('%.0f', now + tonumber(ARGV[4])))
end
for i = 5, #ARGV do
  local name = ARGV[i]
  local row = redis.call('HMGET', KEYS[2], name .. ':u', name .. ':h', name .. ':w', name .. ':c', name .. ':f')
  local label, start, finish = string.match(row[3] or '', '^(%S+) (%d+) (%d+)$')
  local late = 0
  for slot = 0, SLOTS - 1 do
    local of, sum = string.match(redis.call('HGET', KEYS[2], name .. ':s' .. slot) or '', '^(%d+) (%d+)$')
    of = tonumber(of or -1)
    local inside = not label or (of * SLOT_MS >= tonumber(start) and of * SLOT_MS < tonumber(finish))
    if (of + 1) * SLOT_MS > watermark and inside then late = late + tonumber(sum) end
  end
  row[6] = string.format('%.0f', late)
  row[7] = string.format('%.0f', held[name .. ' ' .. (label or 'ever')] or 0)
  for field = 1, 5 do row[field] = row[field] or '' end
  answer[#answer + 1] = row
end
return answer
