-- engine_died.lua: count an engine death against the requests that ran in it, and requeue them.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 worker_id | 3 lapses_max int | 4 deaths_max int | 5... request_id, fence pairs
-- RETURNS {requeued, ended, expired, dead, wakes passed}.
-- ATOMIC: a death is counted once per attempt: the fence goes with it.

local now = clock(ARGV[1])
local done = {requeued = 0, ended = 0, dead = 0}
for i = 5, #ARGV, 2 do
  local j = redis.call('HMGET', job_key(ARGV[i]), 'state', 'fence')
  if j[1] == 'running' and j[2] == ARGV[i + 1] then
    local how = give_up(ARGV[i], now, 'death', tonumber(ARGV[3]), tonumber(ARGV[4]))
    done[how] = done[how] + 1
  end
end
return {done.requeued, done.ended, 0, done.dead, 0}
