-- enqueue.lua: queue a request, or attach a mailbox to one that is known.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 infl hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 request_id | 3 tenant_id | 4 mailbox channel | 5 body of the ticket | 6 ticket without its body | 7 enqueue_deadline_ms int | 8 expires_ms int | 9 weight_milli int | 10 need KV tokens int | 11 pre_in milli-tokens int | 12 pre_out milli-tokens int | 13 queued_max int | 14 total_max int | 15 bytes_max int | 16 tombstone_ms int
-- RETURNS {'ok', position, generation, already} or {'full', bound, window x5, tenants waiting} or {'refused', why}.
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

-- It is lifted to the virtual time: idling earns no credit.
local function begin_to_wait(who, v)
  local counter = v
  for _, set in ipairs({busy, rest}) do
    local known = redis.call('ZSCORE', set, who)
    if known then
      counter = math.max(tonumber(known), v)
      redis.call('ZREM', set, who)
      break
    end
  end
  redis.call('ZADD', act, whole(counter), who)
end

local m = redis.call('HMGET', meta, 'seq', 'v', 'waiting_bytes')
local ahead, all, held = redis.call('ZCARD', prefix .. 'ten:' .. tenant), waiting(), int(m[3])

local function full(bound)
  local reply = {'full', bound}
  for _, figure in ipairs(window(now_ms)) do reply[#reply + 1] = figure end
  reply[#reply + 1] = redis.call('ZCARD', act)
  return reply
end

local function bound_reached()
  local queued_max = tonumber(ARGV[13])
  if queued_max == 0 then return 'blocked' end
  if ahead >= queued_max then return 'tenant' end
  if all >= tonumber(ARGV[14]) then return 'pool' end
  if held + bytes > tonumber(ARGV[15]) then return 'bytes' end
  return nil
end

if redis.call('EXISTS', job) == 1 then
  local generation = attach()
  return {'ok', position(rid, tenant), generation, 1}
end
local grave = redis.call('GET', tomb)
if grave then
  local bound = string.match(grave, '^full:(%a+)$')
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
redis.call('HSET', meta, 'seq', whole(seq), 'waiting_bytes', whole(held + bytes))
redis.call('HSET', job, 'state', 'queued', 'tenant', tenant, 'seq', whole(seq), 'body', ARGV[5], 'head', ARGV[6],
  'bytes', bytes, 'deadline_ms', ARGV[7], 'expires_ms', ARGV[8], 'weight', ARGV[9], 'need', ARGV[10],
  'pre_in', ARGV[11], 'pre_out', ARGV[12], 'mailboxes', mailbox, 'generation', 1, 'since_us', whole(now))
redis.call('ZADD', prefix .. 'ten:' .. tenant, whole(seq), rid)
redis.call('ZADD', expiry, ARGV[8], rid)
if ahead == 0 then begin_to_wait(tenant, int(m[2])) end
wake_unseen(now_ms, seq)
local turn = redis.call('ZRANK', act, tenant)
return {'ok', 1 + math.min(all, ahead * redis.call('ZCARD', act) + turn), 1, 0}
