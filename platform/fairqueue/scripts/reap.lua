-- reap.lua: take back lapsed leases, end expired requests, pass on wakes that nobody used, forget old dead letters.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 limit int | 3 lapses_max int | 4 deaths_max int | 5 wake_margin_ms int
-- RETURNS {requeued, ended, expired, dead, wakes passed}.
-- ATOMIC: a lapsed attempt loses its fence in the script that gives its request on; a cancelled one is never requeued.
local DEAD_KEPT_MS = 7 * 86400000 -- as long as the engines' logs that tell of them; they have prompts

local now = clock(ARGV[1])
local now_ms = ms(now)
local done = {requeued = 0, ended = 0, dead = 0}
local expired, passed = 0, 0
for _, rid in ipairs(redis.call('ZRANGEBYSCORE', lease, '-inf', now_ms, 'LIMIT', 0, ARGV[2])) do
  local how = give_up(rid, now, 'lapse', tonumber(ARGV[3]), tonumber(ARGV[4]))
  done[how] = done[how] + 1
end
for _, rid in ipairs(redis.call('ZRANGEBYSCORE', expiry, '-inf', now_ms, 'LIMIT', 0, ARGV[2])) do
  close(rid, now, 'expired', '', 'deadline_exceeded')
  expired = expired + 1
end
local old = whole(now_ms - tonumber(ARGV[5]))
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', wakes, '-inf', old, 'LIMIT', 0, ARGV[2])) do
  awake(worker)
  forget(worker)
  if waiting() > 0 then passed = passed + wake_one(now_ms) end
end
redis.call('XTRIM', dead, 'MINID', whole(ms(clock('')) - DEAD_KEPT_MS)) -- their ids are the server's time
return {done.requeued, done.ended, expired, done.dead, passed}
