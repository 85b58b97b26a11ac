-- pool.lua: functions that every script of the pool shares; put behind each header by fairqueue.loading.
-- KEYS 1 prefix of the slot | 2 act zset waiting tenant->counter | 3 busy zset running tenant->counter | 4 rest zset resting tenant->counter | 5 infl hash tenant->running | 6 meta hash | 7 expiry zset waiting request->ms | 8 lease zset request->ms | 9 unsettled zset request->ms | 10 usage stream | 11 idle zset worker->seq of its last look | 12 wakes zset worker->ms of a wake not yet used | 13 dead stream
-- ARGV none
-- RETURNS nothing; it is a part of other scripts.
-- ATOMIC: a request leaves a state and enters the next, with its charge, its usage record and its wake, in one script.

local prefix, act, busy, rest, infl, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local expiry, lease, unsettled, usage, idle, wakes, dead = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]

local WINDOW_MS = 60000

-- Lua prints numbers with 14 digits; microseconds and counters have more.
local function whole(number) return string.format('%.0f', number) end

local function clock(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function ms(now_us) return math.floor(now_us / 1000) end

local function job_key(rid) return prefix .. 'job:' .. rid end

local function waiting() return tonumber(redis.call('HGET', meta, 'waiting') or '0') end

local function virtual_time() return tonumber(redis.call('HGET', meta, 'v') or '0') end

local function virtual(service, weight) return math.floor(service * 1000 / weight) end

-- A tenant without a counter is as one that stands at the virtual time.
local function counter_of(tenant)
  for _, set in ipairs({act, busy, rest}) do
    local counter = redis.call('ZSCORE', set, tenant)
    if counter then return tonumber(counter), set end
  end
  return virtual_time(), nil
end

-- Adds to a tenant's counter and puts it where its work says. One that begins to wait is lifted to the virtual time;
-- one that neither waits nor runs and has no debt is forgotten.
local function place(tenant, delta)
  local counter, from = counter_of(tenant)
  local v, into = virtual_time(), nil
  counter = counter + delta
  if redis.call('EXISTS', prefix .. 'ten:' .. tenant) == 1 then
    into = act
    if from ~= act then counter = math.max(counter, v) end
  elseif redis.call('HEXISTS', infl, tenant) == 1 then
    into = busy
  elseif counter > v then
    into = rest
  end
  if from and from ~= into then redis.call('ZREM', from, tenant) end
  if into then redis.call('ZADD', into, whole(counter), tenant) end
end

local function charge(tenant, delta)
  local _, set = counter_of(tenant)
  if set then redis.call('ZINCRBY', set, whole(delta), tenant) else place(tenant, delta) end
end

-- Wakes one idle worker that has not looked since the newest event; those that have looked could not use it.
local function wake_one(now_ms)
  local seq = redis.call('HGET', meta, 'seq') or '0'
  local worker = redis.call('ZRANGEBYSCORE', idle, '-inf', '(' .. seq, 'LIMIT', 0, 1)[1]
  if not worker then return 0 end
  redis.call('ZREM', idle, worker)
  redis.call('ZADD', wakes, now_ms, worker)
  redis.call('RPUSH', prefix .. 'wake:' .. worker, '1')
  return 1
end

-- The queue changed for those who had looked: a request came back, or one that blocked others is gone.
local function changed(now_ms)
  if waiting() == 0 then return end
  redis.call('HINCRBY', meta, 'seq', 1)
  wake_one(now_ms)
end

-- The worker is awake: its wake is used. Returns 1 when one was pending.
local function awake(worker)
  redis.call('ZREM', idle, worker)
  redis.call('DEL', prefix .. 'wake:' .. worker)
  return redis.call('ZREM', wakes, worker)
end

local function join(rid, tenant, seq, expires_ms, bytes)
  redis.call('ZADD', prefix .. 'ten:' .. tenant, seq, rid)
  redis.call('ZADD', expiry, expires_ms, rid)
  redis.call('HINCRBY', meta, 'waiting', 1)
  redis.call('HINCRBY', meta, 'waiting_bytes', bytes)
end

local function part(rid, tenant, bytes)
  redis.call('ZREM', prefix .. 'ten:' .. tenant, rid)
  redis.call('ZREM', expiry, rid)
  redis.call('HINCRBY', meta, 'waiting', -1)
  redis.call('HINCRBY', meta, 'waiting_bytes', -tonumber(bytes))
end

local function release(rid, tenant, worker)
  redis.call('ZREM', lease, rid)
  redis.call('ZREM', prefix .. 'held:' .. worker, rid)
  redis.call('HDEL', prefix .. 'flags:' .. worker, rid)
  if redis.call('HINCRBY', infl, tenant, -1) <= 0 then redis.call('HDEL', infl, tenant) end
end

-- Finished work in this window and the one before: {ms into it, requests, tokens, requests before, tokens before}.
local function window(now_ms)
  local w = redis.call('HMGET', meta, 'win', 'win_n', 'win_t', 'old_n', 'old_t')
  local index, into = math.floor(now_ms / WINDOW_MS), now_ms % WINDOW_MS
  local last = tonumber(w[1] or '-2')
  local n, t = tonumber(w[2] or '0'), tonumber(w[3] or '0')
  if index == last then return {into, n, t, tonumber(w[4] or '0'), tonumber(w[5] or '0')} end
  if index == last + 1 then return {into, 0, 0, n, t} end
  return {into, 0, 0, 0, 0}
end

local function measure(now_ms, tokens)
  local w = window(now_ms)
  redis.call('HSET', meta, 'win', math.floor(now_ms / WINDOW_MS), 'win_n', w[2] + 1, 'win_t', whole(w[3] + tokens),
    'old_n', w[4], 'old_t', whole(w[5]))
end

-- The fields of a usage record, from the job. The stream and the sweep of unsettled requests say the same.
local USAGE = {'prompt', 'cached', 'completion', 'reasoning', 'delivered', 'outcome', 'finish', 'error', 'attempt',
  'worker', 'billed_at_ms', 'queue_us', 'timings', 'verdicts', 'log_key'}

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

-- Every end passes here: state, charge, usage record, unsettled list. The counts on the job are what is billed.
local function close(rid, now_us, outcome, finish, err)
  local job, now_ms = job_key(rid), ms(now_us)
  local j = redis.call('HMGET', job, 'state', 'tenant', 'worker', 'spent', 'paid', 'bytes', 'blk', 'prompt',
    'completion', 'queue_us', 'since_us')
  local tenant = j[2]
  if j[1] == 'queued' then
    part(rid, tenant, j[6])
    redis.call('HSET', job, 'queue_us', whole(tonumber(j[10]) + math.max(now_us - tonumber(j[11]), 0)))
  else
    release(rid, tenant, j[3])
    measure(now_ms, tonumber(j[8]) + tonumber(j[9]))
  end
  redis.call('HSET', job, 'state', 'ended', 'outcome', outcome, 'finish', finish, 'error', err, 'blk', '',
    'billed_at_ms', now_ms, 'paid', j[4])
  redis.call('XADD', usage, '*', unpack(usage_fields(rid)))
  redis.call('ZADD', unsettled, now_ms, rid)
  place(tenant, tonumber(j[4]) - tonumber(j[5]))
  if j[7] == '1' then changed(now_ms) end
end

-- For an end that no worker makes: bill what the log holds; an empty log bills nothing.
local function bill_log(rid)
  local j = redis.call('HMGET', job_key(rid), 'last_seq', 'completion', 'reasoning', 'delivered')
  if j[1] == '0' then
    redis.call('HSET', job_key(rid), 'prompt', 0, 'cached', 0, 'completion', 0, 'reasoning', 0, 'delivered', 0)
    return
  end
  local completion = math.min(tonumber(j[2]), tonumber(j[4]))
  redis.call('HSET', job_key(rid), 'completion', completion, 'reasoning', math.min(tonumber(j[3]), completion))
end

local function bury(rid, now_ms)
  local j = redis.call('HMGET', job_key(rid), 'tenant', 'attempt', 'deaths', 'lapses', 'losses', 'ticket')
  redis.call('XADD', dead, 'MAXLEN', '~', 1000, '*', 'request', rid, 'tenant', j[1], 'attempt', j[2], 'deaths', j[3],
    'lapses', j[4], 'losses', j[5], 'ticket', j[6], 'at_ms', now_ms)
end

-- The attempt of a running request is over without an end. why: 'lapse' and 'death' count and leave evidence,
-- 'back' (handed back, or a claim whose reply was lost) does not. Returns 'ended', 'dead' or 'requeued'.
local function give_up(rid, now_us, why, lapses_max, deaths_max)
  local job, now_ms = job_key(rid), ms(now_us)
  local j = redis.call('HMGET', job, 'cancel', 'last_seq', 'lapses', 'deaths', 'worker', 'tenant', 'paid', 'spent',
    'seq', 'expires_ms', 'bytes', 'attempt', 'losses')
  local lapses, deaths = tonumber(j[3]), tonumber(j[4])
  if why == 'lapse' then lapses = lapses + 1 end
  if why == 'death' then deaths = deaths + 1 end
  if why ~= 'back' then
    redis.call('HSET', job, 'lapses', lapses, 'deaths', deaths,
      'losses', j[13] .. why .. ' ' .. j[5] .. ' ' .. j[12] .. ' ' .. whole(now_ms) .. '\n')
  end
  if j[1] ~= '' then
    bill_log(rid)
    close(rid, now_us, 'cancelled', '', 'request_cancelled')
    return 'ended'
  end
  if j[2] ~= '0' then
    bill_log(rid)
    close(rid, now_us, 'failed', '', 'worker_lost')
    return 'ended'
  end
  if why ~= 'back' and (deaths >= deaths_max or lapses >= lapses_max) then
    bill_log(rid)
    bury(rid, now_ms)
    close(rid, now_us, 'failed', '', 'dead_letter')
    return 'dead'
  end
  bill_log(rid)
  release(rid, j[6], j[5])
  redis.call('HSET', job, 'state', 'queued', 'fence', '', 'worker', '', 'since_us', whole(now_us), 'paid', j[8])
  join(rid, j[6], j[9], j[10], j[11])
  place(j[6], tonumber(j[8]) - tonumber(j[7]))
  changed(now_ms)
  return 'requeued'
end

-- Expected requests before this one under fair order, from 1: its own earlier ones, each with a turn of the others.
local function position(rid, tenant)
  local rank = redis.call('ZRANK', prefix .. 'ten:' .. tenant, rid)
  if not rank then return 0 end
  local turn = redis.call('ZRANK', act, tenant) or 0
  return 1 + math.min(waiting() - 1, rank * redis.call('ZCARD', act) + turn)
end
