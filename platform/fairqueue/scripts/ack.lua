-- ack.lua: mark an ended request settled and publish its final frame, whoever settled it.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 request_id | 3 final bytes | 4 log_ttl_ms int | 5 job_ttl_ms int
-- RETURNS 1, or 0 when there was nothing to do.
-- ATOMIC: a final frame is published once; log and request outlive settlement, and the request its enqueue deadline.

local now = clock(ARGV[1])
local rid = ARGV[2]
local job = job_key(rid)
local state, epoch, last_seq, mailboxes, deadline_ms = unpack(redis.call('HMGET', job, 'state', 'epoch', 'last_seq',
  'mailboxes', 'deadline_ms'))
if state ~= 'ended' then return 0 end
-- The prompt is not needed any more; the head stays.
redis.call('HSET', job, 'state', 'settled', 'final', ARGV[3], 'body', '')
redis.call('ZREM', unsettled, rid)
local ttl = tonumber(ARGV[5])
redis.call('PEXPIRE', job, whole(math.max(ttl, tonumber(deadline_ms) - ms(now) + ttl)))
if int(last_seq) > 0 then redis.call('PEXPIRE', prefix .. 'out:' .. rid, ARGV[4]) end
local message = cmsgpack.pack({{'e', rid, epoch or '', int(last_seq), ARGV[3]}})
for box in string.gmatch(mailboxes, '[^\n]+') do redis.call('PUBLISH', box, message) end
return 1
