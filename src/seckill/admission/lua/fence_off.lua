-- Stops a bucket until it is opened anew: no script trusts it any more, and none carries it on.
--
-- KEYS 1 meta (hash).
-- ARGV 1 msgpack array: the newest epoch that the caller knows. A bucket under a later one was opened
--        anew by somebody else meanwhile, and is left alone.
--        Where there is no bucket, that epoch is written down: whoever was about to open it under
--        that one, and is late, is refused (open_bucket.lua).
-- Reply  1 fenced off, 0 it is under a later epoch.
-- Work   O(1). Smallest Redis: 6.2.

local request = cmsgpack.unpack(ARGV[1])
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then redis.call('UNLINK', KEYS[1]) end
local epoch = tonumber(redis.call('HGET', KEYS[1], 'epoch'))
if epoch and epoch > request[1] then return cmsgpack.pack({ 0 }) end
if not epoch then redis.call('HSET', KEYS[1], 'epoch', request[1]) end
redis.call('HSET', KEYS[1], 'server', FENCED)
return cmsgpack.pack({ 1 })
