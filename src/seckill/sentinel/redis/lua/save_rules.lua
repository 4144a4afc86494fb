-- Keeps one version of the rules of one kind, unless one of that number, or a later, was first.
--
-- KEYS 1 versions (hash): number -> version, as text; 'head' -> the highest number; 'life' -> what
--        tells this hash from one that was lost before it. One hash tag.
-- ARGV 1 number of the version, above 0  2 the version  3 versions that are kept, 2..1000  4 a word
--        that was never used before, for a new hash
-- Reply  1 it was kept · 0 it was not
-- Keeps  numbers only rise, and none is written twice.
-- Work   O(versions that are kept). Smallest Redis: 6.2.

local number, kept_max = tonumber(ARGV[1]), tonumber(ARGV[3])
if not number or number < 1 or number ~= math.floor(number) then
  return redis.error_reply('RULES the number of a version is a whole one above 0')
end
if not kept_max or kept_max < 2 or kept_max > 1000 then
  return redis.error_reply('RULES 2 to 1000 versions are kept')
end
local head = tonumber(redis.call('HGET', KEYS[1], 'head') or 0) or 0
if head >= number then return 0 end

local numbers = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  local found = tonumber(field)
  if found then numbers[#numbers + 1] = found end
end
table.sort(numbers)
local surplus = {}
for i = 1, #numbers + 1 - kept_max do surplus[i] = string.format('%.0f', numbers[i]) end

if #surplus > 0 then redis.call('HDEL', KEYS[1], unpack(surplus)) end
redis.call('HSETNX', KEYS[1], 'life', ARGV[4])
redis.call('HSET', KEYS[1], string.format('%.0f', number), ARGV[2], 'head', string.format('%.0f', number))
return 1
