-- claim.lua: give the next request of the least-served tenant to one worker.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 worker_id | 3 nonce | 4 free_kv int | 5 free_slots int | 6 lease_ms int | 7 quantum virtual milli-tokens int | 8 tenants looked at int | 9 nonce_ttl_ms int | 10 deaths_max int
-- RETURNS {'job', head, body, fence, attempt, log_length, queue_us, deaths, prompt, cached, completion, reasoning} or {'wait', until_ms or ''}.
-- ATOMIC: two workers never hold one request; the last look at the queue and the entry in the idle set are one.

local now = clock(ARGV[1])
local now_ms = ms(now)
local worker, nonce, free_kv, free_slots = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local quantum, looked_at, deaths_max = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[10])
local held, receipt = prefix .. 'held:' .. worker, prefix .. 'claim:' .. nonce
local EXPIRED_MAX, DEPTH, NEIGHBOURS = 64, 4, 4
local WARM_MAX = 256 -- prefixes that are remembered of one worker
local WRITERS_MAX = 16 -- attempts that are remembered of one request

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
local unfit, left_until = false, nil

-- The classes that wait, the one whose turn it is first: while both wait, each gets its share of the service.
local function lanes_in_turn()
  local interactive, batch = lane_of(''), lane_of('batch')
  if redis.call('EXISTS', batch.act) == 0 then return {interactive}, 0 end
  if redis.call('EXISTS', interactive.act) == 0 then return {batch}, 0 end
  local lead = int(redis.call('HGET', meta, 'lead'))
  if lead > 0 then return {batch, interactive}, lead end
  return {interactive, batch}, lead
end

-- A request is left to the worker that served its prefix last, for no longer than the prefix is likely to save: so
-- to wait in vain costs no more than to begin at once could have.
local function left_to_another(key, patience_ms, since_us)
  if not key then return false end
  local over = tonumber(since_us) + tonumber(patience_ms) * 1000
  if now < tonumber(since_us) or now >= over then return false end
  local holder = redis.call('HGET', warm, key)
  if not holder or holder == worker then return false end
  left_until = math.min(left_until or math.huge, math.ceil(over / 1000))
  return true
end

local function run_alone(rid)
  redis.call('HSET', alone, worker, rid)
  redis.call('PEXPIRE', alone, ARGV[9])
end

-- One worker takes nothing else until it is empty, so that a request which must run alone does not starve while every
-- worker always has something. Whether this one does from now on.
local function drains_for(rid)
  local other = redis.call('HGET', job_key(rid), 'drain')
  if other and redis.call('HGET', alone, other) == rid and redis.call('EXISTS', prefix .. 'held:' .. other) == 1 then
    return false
  end
  redis.call('HSET', job_key(rid), 'drain', worker)
  run_alone(rid)
  return true
end

-- What a worker that runs a request alone, or drains for one, may do: nothing ('busy'), take it, or (nil) anything.
local function bound_to(rid)
  local state, owner, tenant, class, expires_ms = unpack(redis.call('HMGET', job_key(rid), 'state', 'worker', 'tenant',
    'class', 'expires_ms'))
  if state == 'running' and owner == worker then return 'busy' end
  if state == 'queued' and tonumber(expires_ms) > now_ms then
    if redis.call('EXISTS', held) == 1 then return 'busy' end
    local lane = lane_of(class)
    local rids = redis.call('ZRANGE', lane.ten .. tenant, 0, 1)
    return {rid = rid, tenant = tenant, counter = tonumber(redis.call('ZSCORE', lane.act, tenant)), last = not rids[2],
      lane = lane, out_of_turn = true}
  end
  redis.call('HDEL', alone, worker)
  return nil
end

-- The head of one of the next tenants whose prefix this worker served last, within a quantum of the least served; else
-- what fair order gives. So the prefix is found in the cache, and the service leans by no more than the quantum.
local function warmer(lane, index, least, found, key)
  if redis.call('EXISTS', prefix .. 'warm:' .. worker) == 0 then return found end
  if key and redis.call('HGET', warm, key) == worker then return found end
  local rows = redis.call('ZRANGE', lane.act, index, index + NEIGHBOURS - 1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    local counter = tonumber(rows[i + 1])
    if counter > least + quantum then return found end
    local rids = redis.call('ZRANGE', lane.ten .. rows[i], 0, 1)
    local expires_ms, need, its, deaths = unpack(redis.call('HMGET', job_key(rids[1]), 'expires_ms', 'need', 'prefix',
      'deaths'))
    if its and int(deaths) < deaths_max and redis.call('HGET', warm, its) == worker and tonumber(expires_ms) > now_ms
      and (tonumber(need) <= free_kv or redis.call('EXISTS', held) == 0) then
      return {rid = rids[1], tenant = rows[i], counter = counter, last = not rids[2], lane = lane}
    end
  end
  return found
end

-- The first request in fair order that fits and is not left to another worker, looking past what is left by no more
-- than a quantum and a few requests of each tenant. A head that does not fit is passed at most once per quantum of
-- virtual time. A worker that holds nothing takes any head, however large: else what fits no worker would wait for ever.
local function look(lane)
  local index, expired, v, least, left = 0, 0, nil, nil, false
  while index < looked_at do
    local row = redis.call('ZRANGE', lane.act, index, index, 'WITHSCORES')
    if #row == 0 then return nil end
    local tenant, counter = row[1], tonumber(row[2])
    least = least or counter
    if left and counter > least + quantum then return nil end
    local rids = redis.call('ZRANGE', lane.ten .. tenant, 0, DEPTH - 1)
    index = index + 1
    for _, rid in ipairs(rids) do
      local expires_ms, need, passed_v, key, patience_ms, since_us, deaths = unpack(redis.call('HMGET', job_key(rid),
        'expires_ms', 'need', 'passed', 'prefix', 'patience_ms', 'since_us', 'deaths'))
      if tonumber(expires_ms) <= now_ms then
        if expired == EXPIRED_MAX then return nil, 'again' end
        close(rid, now, 'expired', '', 'deadline_exceeded')
        expired = expired + 1
        index = index - 1 -- the tenant has another head, or none
        break
      elseif int(deaths) >= deaths_max then
        if redis.call('EXISTS', held) == 0 then
          return {rid = rid, tenant = tenant, counter = counter, last = not rids[2], lane = lane}
        end
        if drains_for(rid) then return nil, 'drains' end
      elseif left_to_another(key, patience_ms, since_us) then
        left = true -- the next of the tenant may be taken
      elseif tonumber(need) <= free_kv or redis.call('EXISTS', held) == 0 then
        local found = {rid = rid, tenant = tenant, counter = counter, last = not rids[2], lane = lane}
        return warmer(lane, index, least, found, key)
      else
        v = v or virtual_time(lane)
        redis.call('HSET', job_key(rid), 'blk', 1)
        unfit = true
        local again = passed_v and tonumber(passed_v) + quantum
        if again and v < again then
          local known = redis.call('HGET', meta, lane.pass_v)
          if not known or again < tonumber(known) then redis.call('HSET', meta, lane.pass_v, whole(again)) end
          return nil, 'blocked'
        end
        passed[#passed + 1] = {rid, lane}
        break
      end
    end
  end
  return nil
end

-- Where all that waits is left to others, no other idle worker could use a wake: this one looks again in time.
local function wait()
  local seq = int(redis.call('HGET', meta, 'seq'))
  redis.call('ZADD', idle, whole(seq), worker)
  if waiting() == 0 then return {'wait', ''} end
  if unfit or not left_until then wake_unseen(now_ms, seq) end
  local expires_ms = tonumber(redis.call('ZRANGE', expiry, 0, 0, 'WITHSCORES')[2])
  return {'wait', whole(math.min(expires_ms, left_until or expires_ms))}
end

local function remember(key)
  local list = prefix .. 'warm:' .. worker
  redis.call('HSET', warm, key, worker)
  redis.call('ZADD', list, now_ms, key)
  if redis.call('ZCARD', list) <= WARM_MAX then return end
  local oldest = redis.call('ZPOPMIN', list)[1]
  if redis.call('HGET', warm, oldest) == worker then redis.call('HDEL', warm, oldest) end
end

-- Of the attempts before: who they were, and up to where the log was theirs. An event's id names its writer, so that
-- one which a failover lost is told from the one that another attempt has put in its place.
local function note_writer(job, last_seq)
  local epoch, before = unpack(redis.call('HMGET', job, 'epoch', 'writers'))
  before = before or ''
  local _, known = string.gsub(before, '\n', '')
  if known == WRITERS_MAX then before = string.match(before, '^[^\n]*\n(.*)$') end
  redis.call('HSET', job, 'writers', before .. epoch .. ' ' .. last_seq .. '\n')
end

-- Returns the reply, whether the request had blocked others, its bytes, its tokens, and what it moves `lead` by. The
-- tenant runs now, and waits if it has more.
local function take(chosen)
  local rid, tenant, job, lane = chosen.rid, chosen.tenant, job_key(chosen.rid), chosen.lane
  local head, body, attempt, weight, pre_in, pre_out, spent, paid, queue_us, since_us, blocking, last_seq, deaths, prompt,
    cached, completion, reasoning, bytes, need, key = unpack(redis.call('HMGET', job, 'head', 'body', 'attempt', 'weight',
    'pre_in', 'pre_out', 'spent', 'paid', 'queue_us', 'since_us', 'blk', 'last_seq', 'deaths', 'prompt', 'cached',
    'completion', 'reasoning', 'bytes', 'need', 'prefix'))
  attempt = int(attempt) + 1
  local fence = attempt .. '-' .. nonce
  local prepaid = math.max(int(spent), virtual(tonumber(pre_in) + tonumber(pre_out), tonumber(weight)))
  local waited = int(queue_us) + math.max(now - tonumber(since_us), 0)
  redis.call('ZREM', lane.ten .. tenant, rid)
  redis.call('ZREM', expiry, rid)
  local load = load_of(tenant)
  load[lane.runs] = load[lane.runs] + 1
  load[3], load[4], load[5] = load[3] - 1, load[4] - need, load[5] - bytes
  keep_load(tenant, load)
  if int(last_seq) > 0 then note_writer(job, last_seq) end
  redis.call('HSET', job, 'state', 'running', 'attempt', attempt, 'fence', fence, 'epoch', fence, 'worker', worker,
    'paid', whole(prepaid), 'queue_us', whole(waited))
  if attempt > 1 then redis.call('HSET', job, 'charged_tokens', 0, 'charged_ms', 0) end
  if blocking == '1' then redis.call('HSET', job, 'blk', '') end
  redis.call('ZADD', lease, now_ms + tonumber(ARGV[6]), rid)
  redis.call('ZADD', held, now_ms, rid)
  redis.call('SET', receipt, rid, 'PX', ARGV[9])
  if key then remember(key) end
  if int(deaths) >= deaths_max then run_alone(rid) end
  local counter = whole(chosen.counter + prepaid - int(paid))
  if chosen.last then
    redis.call('ZREM', lane.act, tenant)
    redis.call('ZADD', lane.busy, counter, tenant)
  else
    redis.call('ZADD', lane.act, counter, tenant)
  end
  return {'job', head, body, fence, attempt, int(last_seq), waited, int(deaths), int(prompt), int(cached), int(completion),
    int(reasoning)}, blocking == '1', tonumber(bytes), tonumber(need), led(lane, int(paid), prepaid, tonumber(weight))
end

-- Virtual time goes on to the counter that is served, and what is in no debt any more is forgotten.
local function advance(lane, v, counter)
  if counter > v then
    v = counter
    redis.call('ZREMRANGEBYSCORE', lane.rest, '-inf', whole(v))
  end
  for _, pass in ipairs(passed) do
    redis.call('HSET', job_key(pass[1]), 'passed', whole(pass[2] == lane and v or virtual_time(pass[2])))
  end
  return v
end

-- A claim that fills its worker leaves the rest to the next idle one; one that ends a blockade lets all look again.
local function pass_on(lane, v, pass_v, seq, was_blocking)
  local passable = pass_v and v >= tonumber(pass_v)
  if passable then redis.call('HDEL', meta, lane.pass_v) end
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
-- Nothing is for this worker: a wake that it had is for another.
local function pass()
  if had_wake == 1 and waiting() > 0 then wake_one(now_ms) end
  return {'wait', ''}
end

local suspect = redis.call('HGET', alone, worker)
local chosen, why = suspect and bound_to(suspect), nil
if free_slots < 1 or chosen == 'busy' then return pass() end
local lanes, lead = lanes_in_turn()
for _, lane in ipairs(chosen and {} or lanes) do
  chosen, why = look(lane)
  if chosen or why then break end
end
if why == 'drains' then return pass() end
if why == 'again' then return {'wait', now_ms} end
if not chosen then return wait() end
local lane = chosen.lane
local m = redis.call('HMGET', meta, lane.v, lane.pass_v, 'seq', 'waiting_bytes', 'waiting_tokens')
local v = advance(lane, int(m[1]), chosen.out_of_turn and 0 or chosen.counter)
local reply, was_blocking, bytes, need, by = take(chosen)
redis.call('HSET', meta, lane.v, whole(v), 'waiting_bytes', whole(int(m[4]) - bytes), 'waiting_tokens',
  whole(int(m[5]) - need), 'lead', whole(lead + by))
pass_on(lane, v, m[2], int(m[3]), was_blocking)
return reply
