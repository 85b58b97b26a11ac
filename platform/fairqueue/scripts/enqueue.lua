-- enqueue.lua: queue a request, or attach a mailbox to one that is known.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 request_id | 3 tenant_id | 4 mailbox channel | 5 body of the ticket | 6 ticket without its body | 7 enqueue_deadline_ms int | 8 expires_ms int | 9 weight_milli int | 10 need KV tokens int | 11 pre_in milli-tokens int | 12 pre_out milli-tokens int | 13 queued_max int | 14 total_max int | 15 bytes_max int | 16 tombstone_ms int | 17 tokens_max int | 18 tenant_tokens_max int | 19 tenant_bytes_max int | 20 class '' or 'batch' | 21 prefix key or '' | 22 patience_ms int
-- RETURNS {'ok', position, generation, already} or {'full', bound, window x5, tenants of the class waiting, requests that must leave first (0: never), parts of the share that is the class's, parts that are not, the bound's value, in use of it, added (0 each where it blocks)} or {'refused', why}.
-- ATOMIC: the bounds hold, and what was refused once is refused for ever (a tombstone past its deadline).

local now = clock(ARGV[1])
local now_ms = ms(now)
local rid, tenant, mailbox, bytes = ARGV[2], ARGV[3], ARGV[4], #ARGV[5] + #ARGV[6]
local deadline, ttl = tonumber(ARGV[7]), tonumber(ARGV[16])
local job, tomb = job_key(rid), prefix .. 'tomb:' .. rid
local MAILBOXES_MAX = 4

local function attach()
  local boxes = {}
  for box in string.gmatch(redis.call('HGET', job, 'mailboxes'), '[^\n]+') do
    if box ~= mailbox then boxes[#boxes + 1] = box end
  end
  boxes[#boxes + 1] = mailbox
  -- The one that attached longest ago gives way; its gateway still has the log.
  if #boxes > MAILBOXES_MAX then table.remove(boxes, 1) end
  redis.call('HSET', job, 'mailboxes', table.concat(boxes, '\n'))
  return redis.call('HINCRBY', job, 'generation', 1)
end

local lane = lane_of(ARGV[20])
local need = tonumber(ARGV[10])
local m = redis.call('HMGET', meta, 'seq', lane.v, 'waiting_bytes', 'waiting_tokens', 'lead')
local all, held, tokens = waiting(), int(m[3]), int(m[4])
local load = load_of(tenant)
local ahead = redis.call('ZCARD', lane.ten .. tenant)

-- It is lifted to the virtual time: idling earns no credit, for the tenant or for its class.
local function begin_to_wait(who, v)
  local counter = v
  for _, set in ipairs({lane.busy, lane.rest}) do
    local known = redis.call('ZSCORE', set, who)
    if known then
      counter = math.max(tonumber(known), v)
      redis.call('ZREM', set, who)
      break
    end
  end
  redis.call('ZADD', lane.act, whole(counter), who)
  if redis.call('ZCARD', lane.act) > 1 then return end
  local lead = int(m[5])
  if without_credit(lane, lead) ~= lead then redis.call('HSET', meta, 'lead', 0) end
end

-- What a bound looks at: {what it counts, in use, requests that use it, added, allowed}. A tenant that may not queue
-- is told so first.
local BOUNDS = {
  {'tenant', load[3], load[3], 1, tonumber(ARGV[13])},
  {'tenant_tokens', load[4], load[3], need, tonumber(ARGV[18])},
  {'tenant_bytes', load[5], load[3], bytes, tonumber(ARGV[19])},
  {'pool', all, all, 1, tonumber(ARGV[14])},
  {'tokens', tokens, all, need, tonumber(ARGV[17])},
  {'bytes', held, all, bytes, tonumber(ARGV[15])},
}

local function full(name)
  local leave, figures = 1, {0, 0, 0}
  for _, bound in ipairs(BOUNDS) do
    local used, requests, added, allowed = bound[2], bound[3], bound[4], bound[5]
    if bound[1] == name then
      figures = {allowed, used, added}
      if added > allowed then
        leave = 0
      elseif used + added > allowed then
        leave = math.ceil((used + added - allowed) * requests / used)
      end
    end
  end
  local reply, w = {'full', name}, window(now_ms)
  for i = 1, 5 do reply[#reply + 1] = w[i] end
  reply[#reply + 1] = redis.call('ZCARD', lane.act)
  reply[#reply + 1] = leave
  local shares, other = {INTERACTIVE_SHARE, BATCH_SHARE}, lane_of(lane.runs == 1 and 'batch' or '')
  reply[#reply + 1] = shares[lane.runs]
  reply[#reply + 1] = redis.call('EXISTS', other.act) * shares[other.runs]
  for i = 1, 3 do reply[#reply + 1] = figures[i] end
  return reply
end

local function bound_reached()
  if tonumber(ARGV[13]) == 0 then return 'blocked' end
  for _, bound in ipairs(BOUNDS) do
    if bound[2] + bound[4] > bound[5] then return bound[1] end
  end
  return nil
end

if redis.call('EXISTS', job) == 1 then
  local generation = attach()
  return {'ok', position(rid, lane, tenant), generation, 1}
end
local grave = redis.call('GET', tomb)
if grave then
  local bound = string.match(grave, '^full:([%a_]+)$')
  if bound then return full(bound) end
  return {'refused', grave}
end
-- A deadline further ahead than tombstones live would let a late enqueue pass a vanished tombstone.
if now_ms > deadline or deadline - now_ms > ttl then
  redis.call('SET', tomb, 'deadline', 'PX', ttl)
  return {'refused', 'deadline'}
end
local bound = bound_reached()
if bound then
  redis.call('SET', tomb, 'full:' .. bound, 'PX', ttl)
  return full(bound)
end
local seq = int(m[1]) + 1
redis.call('HSET', meta, 'seq', whole(seq), 'waiting_bytes', whole(held + bytes), 'waiting_tokens', whole(tokens + need))
load[3], load[4], load[5] = load[3] + 1, load[4] + need, load[5] + bytes
keep_load(tenant, load)
redis.call('HSET', job, 'state', 'queued', 'tenant', tenant, 'seq', whole(seq), 'body', ARGV[5], 'head', ARGV[6],
  'bytes', bytes, 'deadline_ms', ARGV[7], 'expires_ms', ARGV[8], 'weight', ARGV[9], 'need', ARGV[10],
  'pre_in', ARGV[11], 'pre_out', ARGV[12], 'mailboxes', mailbox, 'generation', 1, 'since_us', whole(now))
if ARGV[20] ~= '' then redis.call('HSET', job, 'class', ARGV[20]) end
local holder = nil
if ARGV[21] ~= '' then
  redis.call('HSET', job, 'prefix', ARGV[21], 'patience_ms', ARGV[22])
  holder = redis.call('HGET', warm, ARGV[21])
end
redis.call('ZADD', lane.ten .. tenant, whole(seq), rid)
redis.call('ZADD', expiry, ARGV[8], rid)
if ahead == 0 then begin_to_wait(tenant, int(m[2])) end
wake_unseen(now_ms, seq, holder)
return {'ok', place_in_line(lane, all, ahead, redis.call('ZRANK', lane.act, tenant)), 1, 0}
