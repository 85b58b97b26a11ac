-- unsettled.lua: list ended requests that nobody has settled for a while, as usage records.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 older_than_ms int | 3 limit int
-- RETURNS {{field, value...}...}, oldest first.
-- ATOMIC: each record is of one moment; a request that a failover lost is dropped from the list.

local until_ms = whole(ms(clock(ARGV[1])) - tonumber(ARGV[2]))
local records = {}
for _, rid in ipairs(redis.call('ZRANGEBYSCORE', unsettled, '-inf', until_ms, 'LIMIT', 0, ARGV[3])) do
  local fields = usage_fields(rid)
  if fields then records[#records + 1] = fields else redis.call('ZREM', unsettled, rid) end
end
return records
