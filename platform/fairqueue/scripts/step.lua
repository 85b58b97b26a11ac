-- step.lua: log and publish what one engine step released, extend leases, charge ticks, say what to abort.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 worker_id | 3 lease_ms int | 4 tick_tokens int | 5 tick_ms int | 6 log_bytes_max int | 7 holding_margin_ms int | 8 holding msgpack list of request ids | 9 entries msgpack list of {request_id, fence, first_seq, frames, prompt, cached, completion, reasoning, delivered, in milli-tokens, out milli-tokens, progressed, ids}
-- RETURNS {{request_id, reason, request_id, reason...}, {stale request_id...}}.
-- ATOMIC: a worker whose fence is stale writes nothing; a frame is logged, counted and published once.

local now = clock(ARGV[1])
local now_ms = ms(now)
local worker = ARGV[2]
local lease_until = now_ms + tonumber(ARGV[3])
local tick_tokens, tick_ms, log_max = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local holding, entries = cmsgpack.unpack(ARGV[8]), cmsgpack.unpack(ARGV[9])
local aborts, stale, told = {}, {}, {}
local mailboxes, leases, charges, lead = {}, {}, {}, 0
local owned, running = {}, 0
local PUSH_MAX = 1000

local function abort(rid, reason)
  if told[rid] then return end
  told[rid] = true
  aborts[#aborts + 1] = rid
  aborts[#aborts + 1] = reason
end

local function publish_later(boxes, entry)
  for box in string.gmatch(boxes, '[^\n]+') do
    mailboxes[box] = mailboxes[box] or {}
    table.insert(mailboxes[box], entry)
  end
end

local function append(rid, frames)
  for from = 1, #frames, PUSH_MAX do
    redis.call('RPUSH', prefix .. 'out:' .. rid, unpack(frames, from, math.min(from + PUSH_MAX - 1, #frames)))
  end
end

-- Token ids of what was released, while every frame of the log has come with its own. Only then another worker can go on.
-- Returns the seq up to which the log is covered.
local function keep_ids(rid, ids, frames, known, covered, last)
  if #ids ~= #frames or covered ~= last then return covered end
  local fresh = table.concat(ids, '', known + 1)
  if fresh ~= '' then redis.call('APPEND', prefix .. 'ids:' .. rid, fresh) end
  return last + #frames - known
end

-- Charges up to the cumulative service of the attempt. The first charge corrects the prepaid input by what was cached.
local function tick(writes, e, tenant, class, weight, paid, spent, pre_out, charged_tokens, charged_ms)
  local completion = e[7]
  if e[5] == 0 and completion == 0 then return end
  if charged_ms ~= 0 and completion - charged_tokens < tick_tokens and now_ms - charged_ms < tick_ms then return end
  spent = math.max(spent, virtual(e[10] + e[11], weight))
  local target = math.max(spent, virtual(e[10] + math.max(e[11], pre_out), weight))
  local n = #writes
  writes[n + 1], writes[n + 2], writes[n + 3], writes[n + 4] = 'spent', whole(spent), 'paid', whole(target)
  writes[n + 5], writes[n + 6], writes[n + 7], writes[n + 8] = 'charged_tokens', completion, 'charged_ms', now_ms
  if target == paid then return end
  local lane = lane_of(class)
  local key = class == 'batch' and 'b' .. tenant or 'i' .. tenant
  local due = charges[key] or {lane, tenant, 0}
  due[3] = due[3] + target - paid
  charges[key] = due
  lead = lead + led(lane, paid, target, weight)
end

-- e: request_id, fence, first_seq, frames, prompt, cached, completion, reasoning, delivered, in, out, progressed, and ids,
-- which are the token ids of each frame as little-endian words of four bytes; none where the request could not go on.
local function write(e)
  local rid, job, frames = e[1], job_key(e[1]), e[4]
  local state, fence, owner, last, log_bytes, mailbox, prompt, cached, completion, reasoning, tenant, weight, paid, spent,
    pre_out, charged_tokens, charged_ms, class, covered = unpack(redis.call('HMGET', job, 'state', 'fence', 'worker', 'last_seq',
    'log_bytes', 'mailboxes', 'prompt', 'cached', 'completion', 'reasoning', 'tenant', 'weight', 'paid', 'spent',
    'pre_out', 'charged_tokens', 'charged_ms', 'class', 'ids_seq'))
  if state ~= 'running' or fence ~= e[2] then
    stale[#stale + 1] = rid
    return abort(rid, 'fence')
  end
  if owner == worker and not owned[rid] then
    owned[rid], running = true, running + 1
  end
  last = int(last)
  local known = last + 1 - e[3]
  if known < 0 then return abort(rid, 'gap') end
  local fresh, size = frames, int(log_bytes)
  if known > 0 then
    fresh = {}
    for i = known + 1, #frames do fresh[#fresh + 1] = frames[i] end
  end
  for i = 1, #fresh do size = size + #fresh[i] end
  if #fresh > 0 and size > log_max then return abort(rid, 'log_full') end
  -- A step that comes late, after its repeat and others, says nothing new.
  if e[7] < int(completion) or (#frames > 0 and #fresh == 0) then return end
  local writes = {'completion', e[7], 'delivered', e[9]}
  if #fresh > 0 then
    append(rid, fresh)
    publish_later(mailbox, {'f', rid, e[2], last + 1, fresh})
    writes[5], writes[6], writes[7], writes[8] = 'last_seq', last + #fresh, 'log_bytes', size
    local upto = keep_ids(rid, e[13], frames, known, int(covered), last)
    if upto ~= int(covered) then writes[9], writes[10] = 'ids_seq', upto end
  end
  -- The prompt's counts are the same at almost every step.
  if e[5] ~= int(prompt) or e[6] ~= int(cached) or e[8] ~= int(reasoning) then
    for _, value in ipairs({'prompt', e[5], 'cached', e[6], 'reasoning', e[8]}) do writes[#writes + 1] = value end
  end
  tick(writes, e, tenant, class, tonumber(weight), int(paid), int(spent), tonumber(pre_out), int(charged_tokens),
    int(charged_ms))
  redis.call('HSET', job, unpack(writes))
  if e[12] then
    leases[#leases + 1] = lease_until
    leases[#leases + 1] = rid
  end
end

for _, e in ipairs(entries) do write(e) end
if #leases > 0 then redis.call('ZADD', lease, unpack(leases)) end
for _, due in pairs(charges) do charge(due[1], due[2], due[3]) end
move_lead(lead)
for box, messages in pairs(mailboxes) do redis.call('PUBLISH', box, cmsgpack.pack(messages)) end

local flags = redis.call('HGETALL', prefix .. 'flags:' .. worker)
for i = 1, #flags, 2 do abort(flags[i], flags[i + 1]) end

-- What is leased to the worker, against what it thinks it has. Where all of it ran in this step, `owned` is whole.
if redis.call('ZCARD', prefix .. 'held:' .. worker) ~= running then
  local named = {}
  for _, e in ipairs(entries) do named[e[1]] = true end
  for _, rid in ipairs(holding) do named[rid] = true end
  local held = redis.call('ZRANGE', prefix .. 'held:' .. worker, 0, -1, 'WITHSCORES')
  for i = 1, #held, 2 do
    owned[held[i]] = true
    if not named[held[i]] and tonumber(held[i + 1]) + tonumber(ARGV[7]) < now_ms then give_up(held[i], now, 'back') end
  end
end
for _, rid in ipairs(holding) do
  if not owned[rid] then abort(rid, 'fence') end
end
return {aborts, stale}
