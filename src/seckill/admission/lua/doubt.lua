-- Stops a bucket that somebody does not trust, until it is judged: its seq stands still from here on.
--
-- KEYS 1 meta (hash).
-- ARGV 1 msgpack array: the epoch that is doubted. A bucket under another one is left alone, and so
--        is one that is fenced off already.
-- Reply  1 stopped, 0 left alone.
-- Keeps  everything but the server identity. A doubted bucket reads as one on another server
--        (status 3): it may be carried on (carry_on.lua), and nothing else may be done to it.
-- Work   O(1). Smallest Redis: 6.2.

local request = cmsgpack.unpack(ARGV[1])
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return cmsgpack.pack({ 0 }) end
local found = redis.call('HMGET', KEYS[1], 'epoch', 'server')
if tonumber(found[1]) ~= request[1] or found[2] == FENCED then return cmsgpack.pack({ 0 }) end
redis.call('HSET', KEYS[1], 'server', DOUBTED)
return cmsgpack.pack({ 1 })
