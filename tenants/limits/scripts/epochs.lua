-- epochs.lua: record the epochs of keys and tenant; a later epoch stands, a block stands over its own epoch.
-- KEYS 1 epochs hash
-- ARGV 1... field, epoch int, two each; field = API key id or `tenant`; negative = revoked or suspended at that epoch
-- RETURNS the number of fields that changed.
-- ATOMIC: a reload from the database never undoes a revocation that came while it ran.
local changed = 0
for i = 1, #ARGV, 2 do
  local stored, given = redis.call('HGET', KEYS[1], ARGV[i]), tonumber(ARGV[i + 1])
  local old = stored and tonumber(stored)
  local later = not old or math.abs(given) > math.abs(old)
  if later or (math.abs(given) == math.abs(old) and given < old) then
    redis.call('HSET', KEYS[1], ARGV[i], string.format('%.0f', given))
    changed = changed + 1
  end
end
return changed
