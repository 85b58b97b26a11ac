-- claim.lua: give the next request of the least-served tenant to one worker.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 infl hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 worker_id | 3 nonce | 4 free_kv int | 5 free_slots int | 6 lease_ms int | 7 quantum virtual milli-tokens int | 8 tenants looked at int | 9 nonce_ttl_ms int
-- RETURNS {'job', head, body, fence, attempt, log_length, queue_us, deaths, prompt, cached, completion, reasoning} or {'wait', until_ms or ''}.
-- ATOMIC: two workers never hold one request; the last look at the queue and the entry in the idle set are one.

local now = clock(ARGV[1])
local now_ms = ms(now)
local worker, nonce, free_kv, free_slots = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local quantum, looked_at = tonumber(ARGV[7]), tonumber(ARGV[8])
local held, receipt = prefix .. 'held:' .. worker, prefix .. 'claim:' .. nonce
local EXPIRED_MAX = 64

-- For a nonce that claimed before: the same request, as it is now.
local function claimed_before(rid)
  local state, fence, attempt, owner = unpack(redis.call('HMGET', job_key(rid), 'state', 'fence', 'attempt', 'worker'))
  if state ~= 'running' or fence ~= attempt .. '-' .. nonce or owner ~= worker then return nil end
  local j = redis.call('HMGET', job_key(rid), 'head', 'body', 'fence', 'attempt', 'last_seq', 'queue_us', 'deaths',
    'prompt', 'cached', 'completion', 'reasoning')
  for i = 4, 11 do j[i] = int(j[i]) end
  table.insert(j, 1, 'job')
  return j
end

local passed = {}

-- The first head in fair order that fits. One that does not fit is passed at most once per quantum of virtual time.
-- A worker that holds nothing takes any head, however large: else what fits no worker would wait for ever.
local function look()
  local index, expired, v = 0, 0, nil
  while index < looked_at do
    local row = redis.call('ZRANGE', act, index, index, 'WITHSCORES')
    if #row == 0 then return nil end
    local tenant = row[1]
    local rids = redis.call('ZRANGE', prefix .. 'ten:' .. tenant, 0, 1)
    local rid = rids[1]
    local expires_ms, need, passed_v = unpack(redis.call('HMGET', job_key(rid), 'expires_ms', 'need', 'passed'))
    if tonumber(expires_ms) <= now_ms then
      if expired == EXPIRED_MAX then return nil, 'again' end
      close(rid, now, 'expired', '', 'deadline_exceeded')
      expired = expired + 1
    elseif tonumber(need) <= free_kv or redis.call('EXISTS', held) == 0 then
      return {rid = rid, tenant = tenant, counter = tonumber(row[2]), last = not rids[2]}
    else
      v = v or virtual_time()
      redis.call('HSET', job_key(rid), 'blk', 1)
      local again = passed_v and tonumber(passed_v) + quantum
      if again and v < again then
        local known = redis.call('HGET', meta, 'pass_v')
        if not known or again < tonumber(known) then redis.call('HSET', meta, 'pass_v', whole(again)) end
        return nil
      end
      passed[#passed + 1] = rid
      index = index + 1
    end
  end
  return nil
end

local function wait()
  local seq = int(redis.call('HGET', meta, 'seq'))
  redis.call('ZADD', idle, whole(seq), worker)
  if waiting() == 0 then return {'wait', ''} end
  wake_unseen(now_ms, seq)
  return {'wait', redis.call('ZRANGE', expiry, 0, 0, 'WITHSCORES')[2]}
end

-- Returns the reply, whether the request had blocked others, and its bytes. The tenant runs now, and waits if it has more.
local function take(chosen)
  local rid, tenant, job = chosen.rid, chosen.tenant, job_key(chosen.rid)
  local head, body, attempt, weight, pre_in, pre_out, spent, paid, queue_us, since_us, blocking, last_seq, deaths, prompt,
    cached, completion, reasoning, bytes = unpack(redis.call('HMGET', job, 'head', 'body', 'attempt', 'weight', 'pre_in',
    'pre_out', 'spent', 'paid', 'queue_us', 'since_us', 'blk', 'last_seq', 'deaths', 'prompt', 'cached', 'completion', 'reasoning',
    'bytes'))
  attempt = int(attempt) + 1
  local fence = attempt .. '-' .. nonce
  local prepaid = math.max(int(spent), virtual(tonumber(pre_in) + tonumber(pre_out), tonumber(weight)))
  local waited = int(queue_us) + math.max(now - tonumber(since_us), 0)
  redis.call('ZREM', prefix .. 'ten:' .. tenant, rid)
  redis.call('ZREM', expiry, rid)
  redis.call('HINCRBY', infl, tenant, 1)
  redis.call('HSET', job, 'state', 'running', 'attempt', attempt, 'fence', fence, 'epoch', fence, 'worker', worker,
    'paid', whole(prepaid), 'queue_us', whole(waited))
  if attempt > 1 then redis.call('HSET', job, 'charged_tokens', 0, 'charged_ms', 0) end
  if blocking == '1' then redis.call('HSET', job, 'blk', '') end
  redis.call('ZADD', lease, now_ms + tonumber(ARGV[6]), rid)
  redis.call('ZADD', held, now_ms, rid)
  redis.call('SET', receipt, rid, 'PX', ARGV[9])
  local counter = whole(chosen.counter + prepaid - int(paid))
  if chosen.last then
    redis.call('ZREM', act, tenant)
    redis.call('ZADD', busy, counter, tenant)
  else
    redis.call('ZADD', act, counter, tenant)
  end
  return {'job', head, body, fence, attempt, int(last_seq), waited, int(deaths), int(prompt), int(cached), int(completion),
    int(reasoning)}, blocking == '1', tonumber(bytes)
end

-- Virtual time goes on to the counter that is served, and what is in no debt any more is forgotten.
local function advance(v, counter)
  if counter > v then
    v = counter
    redis.call('ZREMRANGEBYSCORE', rest, '-inf', whole(v))
  end
  for _, rid in ipairs(passed) do redis.call('HSET', job_key(rid), 'passed', whole(v)) end
  return v
end

-- A claim that fills its worker leaves the rest to the next idle one; one that ends a blockade lets all look again.
local function pass_on(v, pass_v, seq, was_blocking)
  local passable = pass_v and v >= tonumber(pass_v)
  if passable then redis.call('HDEL', meta, 'pass_v') end
  if was_blocking or passable then
    changed(now_ms)
  elseif free_slots == 1 and waiting() > 0 then
    wake_unseen(now_ms, seq)
  end
end

local had_wake = awake(worker)
local known = redis.call('GET', receipt)
local before = known and claimed_before(known)
if before then return before end
if free_slots < 1 then
  if had_wake == 1 and waiting() > 0 then wake_one(now_ms) end
  return {'wait', ''}
end
local chosen, again = look()
if again then return {'wait', now_ms} end
if not chosen then return wait() end
local m = redis.call('HMGET', meta, 'v', 'pass_v', 'seq', 'waiting_bytes')
local v = advance(int(m[1]), chosen.counter)
local reply, was_blocking, bytes = take(chosen)
redis.call('HSET', meta, 'v', whole(v), 'waiting_bytes', whole(int(m[4]) - bytes))
pass_on(v, m[2], int(m[3]), was_blocking)
return reply
