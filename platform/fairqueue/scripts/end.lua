-- end.lua: end a request by its worker.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 infl hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 worker_id | 3 request_id | 4 fence | 5 last_seq int | 6 outcome | 7 finish_reason | 8 error_code | 9 prompt int | 10 cached int | 11 completion int | 12 reasoning int | 13 delivered int | 14 service milli-tokens int | 15 timings bytes | 16 verdicts bytes | 17 log_key
-- RETURNS 'ended', 'stale' (the fence does not hold) or 'gap' (an ok end names another last frame than the log's).
-- ATOMIC: a request ends once; its usage record, its charge and its place on the unsettled list are one.

local now = clock(ARGV[1])
local rid, fence = ARGV[3], ARGV[4]
local job = job_key(rid)
local j = redis.call('HMGET', job, 'state', 'fence', 'last_seq', 'weight', 'spent')
if j[2] ~= fence then return 'stale' end
if j[1] == 'ended' or j[1] == 'settled' then return 'ended' end
if j[1] ~= 'running' then return 'stale' end
if ARGV[6] == 'ok' and j[3] ~= ARGV[5] then return 'gap' end
local spent = math.max(tonumber(j[5]), virtual(tonumber(ARGV[14]), tonumber(j[4])))
redis.call('HSET', job, 'prompt', ARGV[9], 'cached', ARGV[10], 'completion', ARGV[11], 'reasoning', ARGV[12],
  'delivered', ARGV[13], 'timings', ARGV[15], 'verdicts', ARGV[16], 'log_key', ARGV[17], 'spent', whole(spent))
close(rid, now, ARGV[6], ARGV[7], ARGV[8])
return 'ended'
