-- pool.lua: functions that every script of the pool shares; put behind each header by fairqueue.loading.
-- KEYS 1 prefix of the slot | 2 act zset waiting tenant->counter | 3 busy zset running tenant->counter | 4 rest zset resting tenant->counter | 5 loads hash tenant->what it has running and waiting | 6 meta hash | 7 expiry zset waiting request->ms | 8 lease zset request->ms | 9 unsettled zset request->ms | 10 usage stream | 11 idle zset worker->seq of its last look | 12 wakes zset worker->ms of a wake not yet used | 13 dead stream
-- ARGV none
-- RETURNS nothing; it is a part of other scripts.
-- ATOMIC: a request leaves a state and enters the next, with its charge, its usage record and its wake, in one script.

local prefix, act, busy, rest, loads, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local expiry, lease, unsettled, usage, idle, wakes, dead = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]

local WINDOW_MS = 60000
local ENDED_KEPT_S = 62 * 86400

-- While requests of both classes wait, a class gets this many parts of the service.
local INTERACTIVE_SHARE, BATCH_SHARE = 4, 1

-- Lua prints numbers with 14 digits; microseconds and counters have more.
local function whole(number) return string.format('%.0f', number) end

local function clock(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function ms(now_us) return math.floor(now_us / 1000) end

local function job_key(rid) return prefix .. 'job:' .. rid end

-- A field that was never written is 0: a waiting request is small, and most of its fields come with its attempt.
local function int(value) return tonumber(value or 0) end

-- Each waiting request has one place in `expiry`.
local function waiting() return redis.call('ZCARD', expiry) end

-- The sets and fields of a service class: each class is a fair queue of its own. `lead`, how far interactive service is
-- ahead of its share, moves by `parts` for each milli-token of the class.
local function lane_of(class)
  if class == 'batch' then
    return {act = prefix .. 'b:act', busy = prefix .. 'b:busy', rest = prefix .. 'b:rest', ten = prefix .. 'b:ten:',
      v = 'b:v', pass_v = 'b:pass_v', runs = 2, parts = -INTERACTIVE_SHARE}
  end
  return {act = act, busy = busy, rest = rest, ten = prefix .. 'ten:', v = 'v', pass_v = 'pass_v', runs = 1,
    parts = BATCH_SHARE}
end

local function virtual_time(lane) return int(redis.call('HGET', meta, lane.v)) end

local function virtual(service, weight) return math.floor(service * 1000 / weight) end

-- What a charge moves `lead` by: service as it was before the tenant's weight, from cumulative amounts.
local function led(lane, before, after, weight)
  return lane.parts * (math.floor(after * weight / 1000) - math.floor(before * weight / 1000))
end

-- A class that begins to wait has earned nothing by idling, and keeps what it owes.
local function without_credit(lane, lead)
  if lane.runs == 1 then return math.max(lead, 0) end
  return math.min(lead, 0)
end

local function move_lead(by)
  if by ~= 0 then redis.call('HINCRBY', meta, 'lead', whole(by)) end
end

-- What a tenant has: interactive and batch requests that run; requests that wait, their tokens and their bytes.
local LOAD = '<I4I4I4I6I6'

local function load_of(tenant)
  local packed = redis.call('HGET', loads, tenant)
  if not packed then return {0, 0, 0, 0, 0} end
  return {struct.unpack(LOAD, packed)}
end

local function keep_load(tenant, load)
  for i = 1, 5 do load[i] = math.max(load[i], 0) end
  if load[1] + load[2] + load[3] == 0 then
    redis.call('HDEL', loads, tenant)
  else
    redis.call('HSET', loads, tenant, struct.pack(LOAD, load[1], load[2], load[3], load[4], load[5]))
  end
end

-- A tenant without a counter is as one that stands at the virtual time.
local function counter_of(lane, tenant)
  for _, set in ipairs({lane.act, lane.busy, lane.rest}) do
    local counter = redis.call('ZSCORE', set, tenant)
    if counter then return tonumber(counter), set end
  end
  return virtual_time(lane), nil
end

-- Adds to a tenant's counter and puts it where its work says. One that begins to wait is lifted to the virtual time;
-- one that neither waits nor runs and has no debt is forgotten.
local function place(lane, tenant, delta, runs)
  local counter, from = counter_of(lane, tenant)
  local v, into = virtual_time(lane), nil
  counter = counter + delta
  if redis.call('EXISTS', lane.ten .. tenant) == 1 then
    into = lane.act
    if from ~= into then
      counter = math.max(counter, v)
      if redis.call('EXISTS', into) == 0 then
        redis.call('HSET', meta, 'lead', whole(without_credit(lane, int(redis.call('HGET', meta, 'lead')))))
      end
    end
  elseif runs > 0 then
    into = lane.busy
  elseif counter > v then
    into = lane.rest
  end
  if from and from ~= into then redis.call('ZREM', from, tenant) end
  if into then redis.call('ZADD', into, whole(counter), tenant) end
end

-- Adds to the counter of a tenant that runs, and so stands in one of two sets.
local function charge(lane, tenant, delta)
  for _, set in ipairs({lane.act, lane.busy}) do
    if redis.call('ZADD', set, 'XX', 'INCR', whole(delta), tenant) then return end
  end
  place(lane, tenant, delta, load_of(tenant)[lane.runs])
end

-- Wakes one idle worker that has not looked since event `seq`, the newest; those that have looked could not use it.
-- The worker that served the request's prefix last comes first, where it is idle.
local function wake_unseen(now_ms, seq, holder)
  local seen = holder and redis.call('ZSCORE', idle, holder)
  local worker = seen and tonumber(seen) < seq and holder
    or redis.call('ZRANGEBYSCORE', idle, '-inf', '(' .. whole(seq), 'LIMIT', 0, 1)[1]
  if not worker then return 0 end
  redis.call('ZREM', idle, worker)
  redis.call('ZADD', wakes, now_ms, worker)
  redis.call('RPUSH', prefix .. 'wake:' .. worker, '1')
  return 1
end

local function wake_one(now_ms) return wake_unseen(now_ms, int(redis.call('HGET', meta, 'seq'))) end

-- The queue changed for those who had looked: a request came back, or one that blocked others is gone.
local function changed(now_ms)
  if waiting() == 0 then return end
  wake_unseen(now_ms, redis.call('HINCRBY', meta, 'seq', 1))
end

-- The worker is awake: its wake is used. Returns 1 when one was pending. It is idle, or has a wake, or neither.
local function awake(worker)
  if redis.call('ZREM', idle, worker) == 1 or redis.call('ZREM', wakes, worker) == 0 then return 0 end
  redis.call('DEL', prefix .. 'wake:' .. worker)
  return 1
end

-- What each worker served last: prefix -> worker in one hash, and a list of each worker, which bounds it.
local warm = prefix .. 'warm'

local function forget(worker)
  local list = prefix .. 'warm:' .. worker
  for _, key in ipairs(redis.call('ZRANGE', list, 0, -1)) do
    if redis.call('HGET', warm, key) == worker then redis.call('HDEL', warm, key) end
  end
  redis.call('DEL', list)
end

-- A request that ran at so many engine deaths may be what kills them, so it runs alone: worker -> the request that it
-- runs alone, or takes nothing else for until it is empty.
local alone = prefix .. 'alone'

local function weigh(load, requests, tokens, bytes)
  load[3], load[4], load[5] = load[3] + requests, load[4] + tokens * requests, load[5] + bytes * requests
  redis.call('HINCRBY', meta, 'waiting_bytes', bytes * requests + 0)
  redis.call('HINCRBY', meta, 'waiting_tokens', tokens * requests + 0)
end

local function join(rid, lane, tenant, seq, expires_ms)
  redis.call('ZADD', lane.ten .. tenant, seq, rid)
  redis.call('ZADD', expiry, expires_ms, rid)
end

local function part(rid, lane, tenant)
  redis.call('ZREM', lane.ten .. tenant, rid)
  redis.call('ZREM', expiry, rid)
end

-- The worker's slot is free.
local function release(rid, worker, cancel)
  redis.call('ZREM', lease, rid)
  redis.call('ZREM', prefix .. 'held:' .. worker, rid)
  if cancel and cancel ~= '' then redis.call('HDEL', prefix .. 'flags:' .. worker, rid) end
end

-- Finished work in this window and the one before: {ms into it, requests, tokens, requests before, tokens before},
-- and `lead`, which is written with it.
local function window(now_ms)
  local w = redis.call('HMGET', meta, 'win', 'win_n', 'win_t', 'old_n', 'old_t', 'lead')
  local index, into, lead = math.floor(now_ms / WINDOW_MS), now_ms % WINDOW_MS, int(w[6])
  local last = tonumber(w[1] or '-2')
  local n, t = int(w[2]), int(w[3])
  if index == last then return {into, n, t, int(w[4]), int(w[5]), lead} end
  if index == last + 1 then return {into, 0, 0, n, t, lead} end
  return {into, 0, 0, 0, 0, lead}
end

local function measure(now_ms, tokens, by)
  local w = window(now_ms)
  local writes = w[2] > 0 and {'win_n', w[2] + 1, 'win_t', whole(w[3] + tokens)} or {'win', math.floor(now_ms / WINDOW_MS),
    'win_n', 1, 'win_t', whole(tokens), 'old_n', w[4], 'old_t', whole(w[5])}
  if by ~= 0 then
    writes[#writes + 1] = 'lead'
    writes[#writes + 1] = whole(w[6] + by)
  end
  redis.call('HSET', meta, unpack(writes))
end

-- The fields of a usage record, from the job. The stream and the sweep of unsettled requests say the same.
local USAGE = {'prompt', 'cached', 'completion', 'reasoning', 'delivered', 'outcome', 'finish', 'error', 'attempt',
  'worker', 'billed_at_ms', 'queue_us', 'timings', 'verdicts', 'log_key', 'param'}

local function usage_fields(rid)
  local head = redis.call('HGET', job_key(rid), 'head')
  if not head then return nil end
  local values = redis.call('HMGET', job_key(rid), unpack(USAGE))
  local flat = {'ticket', head}
  for i, name in ipairs(USAGE) do
    flat[#flat + 1] = name
    flat[#flat + 1] = values[i] or ''
  end
  return flat
end

local SAID = {'prompt', 'cached', 'completion', 'reasoning', 'delivered', 'timings', 'verdicts', 'log_key', 'spent',
  'param'}

-- The queue's own count of what it ended, by hour and tenant, beside the usage record: the close of a month compares it.
local function count_end(tenant, now_ms, tokens)
  local hour = prefix .. 'ended:' .. math.floor(now_ms / 3600000)
  redis.call('HINCRBY', hour, tenant .. ':tokens', tokens)
  if redis.call('HINCRBY', hour, tenant, 1) == 1 then
    redis.call('EXPIRE', hour, ENDED_KEPT_S)
    redis.call('HSETNX', meta, 'counted_from', now_ms)
  end
end

-- Every end passes here: state, charge, usage record, unsettled list. `said` is what its worker tells of the end;
-- without a worker, the counts on the request are what is billed.
local function close(rid, now_us, outcome, finish, err, said)
  local job, now_ms = job_key(rid), ms(now_us)
  local state, tenant, worker, spent, paid, bytes, blocking, cancel, prompt, cached, completion, reasoning, delivered,
    queue_us, since_us, head, attempt, class, need, weight, ids_seq = unpack(redis.call('HMGET', job, 'state', 'tenant', 'worker', 'spent', 'paid',
    'bytes', 'blk', 'cancel', 'prompt', 'cached', 'completion', 'reasoning', 'delivered', 'queue_us', 'since_us', 'head',
    'attempt', 'class', 'need', 'weight', 'ids_seq'))
  local known = {int(prompt), int(cached), int(completion), int(reasoning), int(delivered), '', '', '', int(spent),
    ''}
  local s, waited, lane, load = said or known, int(queue_us), lane_of(class), load_of(tenant)
  if state == 'queued' then
    part(rid, lane, tenant)
    weigh(load, -1, int(need), int(bytes))
    waited = waited + math.max(now_us - int(since_us), 0)
  else
    release(rid, worker, cancel)
    load[lane.runs] = load[lane.runs] - 1
    measure(now_ms, s[1] + s[3], led(lane, int(paid), s[9], tonumber(weight)))
  end
  keep_load(tenant, load)
  local writes = {'state', 'ended', 'outcome', outcome, 'finish', finish, 'error', err, 'billed_at_ms', now_ms,
    'paid', whole(s[9])}
  local function write(name, value)
    writes[#writes + 1] = name
    writes[#writes + 1] = value
  end
  -- What the last step said is written; so an end that adds nothing to it costs no second time.
  for i, name in ipairs(SAID) do
    if s[i] ~= known[i] then write(name, i == 9 and whole(s[i]) or s[i]) end
  end
  if state == 'queued' then write('queue_us', whole(waited)) end
  if blocking == '1' then write('blk', '') end
  redis.call('HSET', job, unpack(writes))
  redis.call('XADD', usage, '*', 'ticket', head, 'prompt', s[1], 'cached', s[2], 'completion', s[3], 'reasoning', s[4],
    'delivered', s[5], 'outcome', outcome, 'finish', finish, 'error', err, 'attempt', attempt or 0,
    'worker', worker or '', 'billed_at_ms', now_ms, 'queue_us', whole(waited), 'timings', s[6], 'verdicts', s[7],
    'log_key', s[8], 'param', s[10])
  count_end(tenant, now_ms, s[1] + s[3])
  redis.call('ZADD', unsettled, now_ms, rid)
  if ids_seq then redis.call('DEL', prefix .. 'ids:' .. rid) end
  if state == 'queued' or load[lane.runs] == 0 then
    place(lane, tenant, s[9] - int(paid), load[lane.runs])
  elseif s[9] ~= int(paid) then
    charge(lane, tenant, s[9] - int(paid))
  end
  if blocking == '1' then changed(now_ms) end
end

-- For an end that no worker makes: bill what the log holds; an empty log bills nothing.
local function bill_log(rid)
  local last_seq, completion, reasoning, delivered = unpack(redis.call('HMGET', job_key(rid), 'last_seq', 'completion',
    'reasoning', 'delivered'))
  if int(last_seq) == 0 then
    redis.call('HSET', job_key(rid), 'prompt', 0, 'cached', 0, 'completion', 0, 'reasoning', 0, 'delivered', 0)
    return
  end
  completion = math.min(int(completion), int(delivered))
  redis.call('HSET', job_key(rid), 'completion', completion, 'reasoning', math.min(int(reasoning), completion))
end

local function bury(rid, now_ms)
  local j = redis.call('HMGET', job_key(rid), 'tenant', 'attempt', 'deaths', 'lapses', 'losses', 'head',
    'body')
  redis.call('XADD', dead, 'MAXLEN', '~', 1000, '*', 'request', rid, 'tenant', j[1], 'attempt', j[2], 'deaths', j[3],
    'lapses', j[4], 'losses', j[5], 'ticket', j[6], 'body', j[7], 'at_ms', now_ms)
end

-- The error code of a request that was cancelled for this reason.
local function code_of(reason) return reason == 'revoked' and 'key_revoked' or 'request_cancelled' end

-- A request that goes on at another worker: what it is billed so far is what the next attempt begins with, and it may
-- wait as long again as when it waited last. Returns when it expires.
local function carry_over(rid, now_ms, since_us, expires_ms)
  local ids = math.floor(redis.call('STRLEN', prefix .. 'ids:' .. rid) / 4)
  local completion, reasoning = unpack(redis.call('HMGET', job_key(rid), 'completion', 'reasoning'))
  completion = math.min(int(completion), ids)
  local until_ms = math.max(int(expires_ms), now_ms + int(expires_ms) - ms(int(since_us)))
  redis.call('HSET', job_key(rid), 'completion', completion, 'delivered', completion,
    'reasoning', math.min(int(reasoning), completion), 'expires_ms', whole(until_ms))
  return until_ms
end

-- The attempt of a running request is over without an end. why: 'lapse' and 'death' count and leave evidence,
-- 'back' (handed back, or a claim whose reply was lost) does not. Returns 'ended', 'dead' or 'requeued'.
local function give_up(rid, now_us, why, lapses_max, deaths_max)
  local job, now_ms = job_key(rid), ms(now_us)
  local cancel, last_seq, lapses, deaths, worker, tenant, paid, spent, seq, expires_ms, bytes, attempt, losses, class, need,
    weight, ids_seq, since_us = unpack(redis.call('HMGET', job, 'cancel', 'last_seq', 'lapses', 'deaths', 'worker', 'tenant', 'paid', 'spent', 'seq',
    'expires_ms', 'bytes', 'attempt', 'losses', 'class', 'need', 'weight', 'ids_seq', 'since_us'))
  lapses, deaths = int(lapses), int(deaths)
  if why == 'lapse' then lapses = lapses + 1 end
  if why == 'death' then deaths = deaths + 1 end
  if why ~= 'back' then
    redis.call('HSET', job, 'lapses', lapses, 'deaths', deaths,
      'losses', (losses or '') .. why .. ' ' .. worker .. ' ' .. attempt .. ' ' .. whole(now_ms) .. '\n')
    forget(worker)
  end
  bill_log(rid)
  if cancel and cancel ~= '' then
    close(rid, now_us, 'cancelled', '', code_of(cancel))
    return 'ended'
  end
  if int(last_seq) ~= int(ids_seq) then -- not all that was released can be replayed
    close(rid, now_us, 'failed', '', 'worker_lost')
    return 'ended'
  end
  if why ~= 'back' and (deaths > deaths_max or lapses >= lapses_max) then
    bury(rid, now_ms)
    close(rid, now_us, 'failed', '', 'dead_letter')
    return 'dead'
  end
  local lane, load = lane_of(class), load_of(tenant)
  if int(last_seq) ~= 0 then expires_ms = carry_over(rid, now_ms, since_us, expires_ms) end
  release(rid, worker, cancel)
  redis.call('HSET', job, 'state', 'queued', 'fence', '', 'worker', '', 'since_us', whole(now_us),
    'paid', whole(int(spent)))
  join(rid, lane, tenant, seq, expires_ms)
  load[lane.runs] = load[lane.runs] - 1
  weigh(load, 1, int(need), int(bytes))
  keep_load(tenant, load)
  move_lead(led(lane, int(paid), int(spent), tonumber(weight)))
  place(lane, tenant, int(spent) - int(paid), load[lane.runs])
  changed(now_ms)
  return 'requeued'
end

-- Expected requests before this one under fair order, from 1: its own earlier ones, each with a turn of the others of
-- its class, and what the other class gets meanwhile.
local function place_in_line(lane, all, rank, turn)
  local before = rank * redis.call('ZCARD', lane.act) + turn
  local other = lane_of(lane.runs == 1 and 'batch' or '')
  if redis.call('EXISTS', other.act) == 1 then
    local shares = {INTERACTIVE_SHARE, BATCH_SHARE}
    before = before + math.floor(before * shares[other.runs] / shares[lane.runs])
  end
  return 1 + math.min(all, before)
end

local function position(rid, lane, tenant)
  local rank = redis.call('ZRANK', lane.ten .. tenant, rid)
  if not rank then return 0 end
  return place_in_line(lane, waiting() - 1, rank, redis.call('ZRANK', lane.act, tenant) or 0)
end
