-- end.lua: end a request by its worker.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 worker_id | 3 request_id | 4 fence | 5 last_seq int | 6 outcome | 7 finish_reason | 8 error_code | 9 prompt int | 10 cached int | 11 completion int | 12 reasoning int | 13 delivered int | 14 service milli-tokens int | 15 timings bytes | 16 verdicts bytes | 17 log_key | 18 error_param
-- RETURNS 'ended', 'stale' (the fence does not hold, or the request was ended by somebody else) or 'gap' (an ok end names another last frame than the log's).
-- ATOMIC: a request ends once; its usage record, its charge and its place on the unsettled list are one.

local now = clock(ARGV[1])
local rid, fence = ARGV[3], ARGV[4]
local job = job_key(rid)
local state, valid, last_seq, weight, spent = unpack(redis.call('HMGET', job, 'state', 'fence', 'last_seq', 'weight',
  'spent'))
if valid ~= fence then return 'stale' end
if state == 'ended' or state == 'settled' then
  -- Its own end again, or another's under the same fence (a cancel, a lapsed lease): that one stands, and is settled.
  local stands = redis.call('HMGET', job, 'outcome', 'error', 'prompt', 'cached', 'completion', 'reasoning', 'delivered')
  if stands[1] ~= ARGV[6] or stands[2] ~= ARGV[8] then return 'stale' end
  for i = 3, 7 do
    if int(stands[i]) ~= tonumber(ARGV[i + 6]) then return 'stale' end
  end
  return 'ended'
end
if state ~= 'running' then return 'stale' end
if ARGV[6] == 'ok' and int(last_seq) ~= tonumber(ARGV[5]) then return 'gap' end
close(rid, now, ARGV[6], ARGV[7], ARGV[8], {tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]),
  tonumber(ARGV[12]), tonumber(ARGV[13]), ARGV[15], ARGV[16], ARGV[17],
  math.max(int(spent), virtual(tonumber(ARGV[14]), tonumber(weight))), ARGV[18]})
return 'ended'
