-- Writes the window, the limit and the pause of a sale into a bucket, unless it has newer ones.
--
-- KEYS 1 meta (hash).
-- ARGV 1 msgpack array: limit, starts, ends (0: open end), paused (0|1), version.
-- Reply  1 written, 0 left alone: the bucket is missing or has this version or a later one.
-- Work   O(1). Smallest Redis: 6.2.

local request = cmsgpack.unpack(ARGV[1])
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return cmsgpack.pack({ 0 }) end
local version = tonumber(redis.call('HGET', KEYS[1], 'version'))
if not version or version >= request[5] then return cmsgpack.pack({ 0 }) end
redis.call('HSET', KEYS[1], 'limit', request[1], 'starts', request[2], 'ends', request[3],
  'paused', request[4], 'version', request[5])
return cmsgpack.pack({ 1 })
