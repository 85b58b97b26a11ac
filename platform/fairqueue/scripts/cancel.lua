-- cancel.lua: cancel a request: end it where it waits, flag it where it runs, refuse it where it is unknown.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 request_id | 3 generation int or '' | 4 reason | 5 tombstone_ms int
-- RETURNS 'tombstoned', 'ended', 'flagged', 'already_ended' or 'stale' (another has attached since).
-- ATOMIC: after the answer the request is never claimed.

local now = clock(ARGV[1])
local rid = ARGV[2]
local job = job_key(rid)
local j = redis.call('HMGET', job, 'state', 'generation', 'worker', 'outcome', 'cancel')
if not j[1] then
  redis.call('SET', prefix .. 'tomb:' .. rid, 'cancel', 'PX', ARGV[5])
  return 'tombstoned'
end
if j[1] == 'ended' or j[1] == 'settled' then
  return j[4] == 'cancelled' and 'ended' or 'already_ended'
end
if ARGV[3] ~= '' and ARGV[3] ~= j[2] then return 'stale' end
if j[1] == 'queued' then
  close(rid, now, 'cancelled', '', code_of(ARGV[4]))
  return 'ended'
end
if (j[5] or '') == '' then
  redis.call('HSET', job, 'cancel', ARGV[4])
  redis.call('HSET', prefix .. 'flags:' .. j[3], rid, ARGV[4])
end
return 'flagged'
