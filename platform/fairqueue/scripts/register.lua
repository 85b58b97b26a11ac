-- register.lua: a worker starts and holds nothing: take back what its last life left.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 worker_id | 3 lapses_max int | 4 deaths_max int
-- RETURNS {requeued, ended, expired, dead, wakes passed}.
-- ATOMIC: a request is never leased to a worker's last life and claimed by its next.

local now = clock(ARGV[1])
local done = {requeued = 0, ended = 0, dead = 0}
local had_wake = awake(ARGV[2])
forget(ARGV[2]) -- an engine that starts has an empty cache
redis.call('HDEL', alone, ARGV[2])
for _, rid in ipairs(redis.call('ZRANGE', prefix .. 'held:' .. ARGV[2], 0, -1)) do
  local how = give_up(rid, now, 'lapse', tonumber(ARGV[3]), tonumber(ARGV[4]))
  done[how] = done[how] + 1
end
local passed = 0
if had_wake == 1 and waiting() > 0 then passed = wake_one(ms(now)) end
return {done.requeued, done.ended, 0, done.dead, passed}
