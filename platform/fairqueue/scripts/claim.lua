-- claim.lua: give the next request of the least-served tenant to one worker.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 infl hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 worker_id | 3 nonce | 4 free_kv int | 5 free_slots int | 6 lease_ms int | 7 quantum virtual milli-tokens int | 8 tenants looked at int | 9 nonce_ttl_ms int
-- RETURNS {'job', ticket, fence, attempt, log_length, queue_us, deaths, prompt, cached, completion, reasoning} or {'wait', until_ms or ''}.
-- ATOMIC: two workers never hold one request; the last look at the queue and the entry in the idle set are one.

local now = clock(ARGV[1])
local now_ms = ms(now)
local worker, nonce, free_kv, free_slots = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local quantum, looked_at = tonumber(ARGV[7]), tonumber(ARGV[8])
local held, receipt = prefix .. 'held:' .. worker, prefix .. 'claim:' .. nonce
local EXPIRED_MAX = 64

local function reply(rid)
  local j = redis.call('HMGET', job_key(rid), 'ticket', 'fence', 'attempt', 'last_seq', 'queue_us', 'deaths', 'prompt',
    'cached', 'completion', 'reasoning')
  for i = 3, 10 do j[i] = tonumber(j[i]) end
  table.insert(j, 1, 'job')
  return j
end

-- A worker that holds nothing takes any head, however large: else what fits no worker would wait for ever.
local fits_all = redis.call('EXISTS', held) == 0
local v = virtual_time()
local passed = {}

-- The first head in fair order that fits. One that does not fit is passed at most once per quantum of virtual time.
local function look()
  local index, expired = 0, 0
  while index < looked_at do
    local row = redis.call('ZRANGE', act, index, index, 'WITHSCORES')
    if #row == 0 then return nil end
    local tenant = row[1]
    local rid = redis.call('ZRANGE', prefix .. 'ten:' .. tenant, 0, 0)[1]
    local j = redis.call('HMGET', job_key(rid), 'expires_ms', 'need', 'passed')
    if tonumber(j[1]) <= now_ms then
      if expired == EXPIRED_MAX then return nil, 'again' end
      close(rid, now, 'expired', '', 'deadline_exceeded')
      expired = expired + 1
    elseif fits_all or tonumber(j[2]) <= free_kv then
      return {rid = rid, tenant = tenant, counter = tonumber(row[2])}
    else
      redis.call('HSET', job_key(rid), 'blk', 1)
      local again = j[3] ~= '' and tonumber(j[3]) + quantum
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
  redis.call('ZADD', idle, redis.call('HGET', meta, 'seq') or '0', worker)
  if waiting() == 0 then return {'wait', ''} end
  wake_one(now_ms)
  return {'wait', redis.call('ZRANGE', expiry, 0, 0, 'WITHSCORES')[2]}
end

local function advance(counter)
  if counter > v then
    v = counter
    redis.call('HSET', meta, 'v', whole(v))
    redis.call('ZREMRANGEBYSCORE', rest, '-inf', whole(v))
  end
  for _, rid in ipairs(passed) do redis.call('HSET', job_key(rid), 'passed', whole(v)) end
end

local function take(rid, tenant)
  local job = job_key(rid)
  local j = redis.call('HMGET', job, 'attempt', 'weight', 'pre_in', 'pre_out', 'spent', 'paid', 'bytes', 'queue_us',
    'since_us', 'blk')
  local attempt = tonumber(j[1]) + 1
  local fence = attempt .. '-' .. nonce
  local prepaid = math.max(tonumber(j[5]), virtual(tonumber(j[3]) + tonumber(j[4]), tonumber(j[2])))
  part(rid, tenant, j[7])
  redis.call('HINCRBY', infl, tenant, 1)
  redis.call('HSET', job, 'state', 'running', 'attempt', attempt, 'fence', fence, 'epoch', fence, 'worker', worker,
    'paid', whole(prepaid), 'charged_tokens', 0, 'charged_ms', 0, 'blk', '',
    'queue_us', whole(tonumber(j[8]) + math.max(now - tonumber(j[9]), 0)))
  redis.call('ZADD', lease, now_ms + tonumber(ARGV[6]), rid)
  redis.call('ZADD', held, now_ms, rid)
  redis.call('SET', receipt, rid, 'PX', ARGV[9])
  place(tenant, prepaid - tonumber(j[6]))
  return j[10] == '1'
end

-- A claim that fills its worker leaves the rest to the next idle one; one that ends a blockade lets all look again.
local function pass_on(was_blocking)
  local pass_v = redis.call('HGET', meta, 'pass_v')
  local passable = pass_v and v >= tonumber(pass_v)
  if passable then redis.call('HDEL', meta, 'pass_v') end
  if was_blocking or passable then
    changed(now_ms)
  elseif free_slots == 1 and waiting() > 0 then
    wake_one(now_ms)
  end
end

local had_wake = awake(worker)
local known = redis.call('GET', receipt)
if known then
  local j = redis.call('HMGET', job_key(known), 'state', 'fence', 'attempt', 'worker')
  if j[1] == 'running' and j[2] == j[3] .. '-' .. nonce and j[4] == worker then return reply(known) end
end
if free_slots < 1 then
  if had_wake == 1 and waiting() > 0 then wake_one(now_ms) end
  return {'wait', ''}
end
local chosen, again = look()
if again then return {'wait', now_ms} end
if not chosen then return wait() end
advance(chosen.counter)
pass_on(take(chosen.rid, chosen.tenant))
return reply(chosen.rid)
