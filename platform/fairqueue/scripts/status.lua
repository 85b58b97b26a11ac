-- status.lua: say what the pool knows of a request.
-- KEYS 1 prefix of the slot: names of requests, logs, lists and tombstones are made from it | 2 act zset | 3 busy zset | 4 rest zset | 5 loads hash | 6 meta hash | 7 expiry zset | 8 lease zset | 9 unsettled zset | 10 usage stream | 11 idle zset | 12 wakes zset | 13 dead stream
-- ARGV 1 now_us int or '' for TIME | 2 request_id
-- RETURNS {position, queue_us, {field, value...}} or nil when unknown.
-- ATOMIC: position and state are of one moment.

local now = clock(ARGV[1])
local NAMES = {'state', 'tenant', 'head', 'generation', 'attempt', 'deaths', 'lapses', 'prompt', 'cached', 'completion',
  'reasoning', 'last_seq', 'worker', 'outcome', 'error', 'queue_us', 'since_us', 'class'}
local values = redis.call('HMGET', job_key(ARGV[2]), unpack(NAMES))
if not values[1] then return nil end
local flat, by_name = {}, {}
for i, name in ipairs(NAMES) do
  by_name[name] = values[i] or ''
  flat[#flat + 1] = name
  flat[#flat + 1] = by_name[name]
end
local queue_us = tonumber(by_name.queue_us) or 0
if by_name.state == 'queued' then queue_us = queue_us + math.max(now - tonumber(by_name.since_us), 0) end
return {position(ARGV[2], lane_of(by_name.class), by_name.tenant), queue_us, flat}
