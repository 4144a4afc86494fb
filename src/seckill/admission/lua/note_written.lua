-- Remembers in a bucket how far the ledger had written its epoch: books that are restored from a
-- backup have it less far, and that must be noticed.
--
-- KEYS 1 meta (hash).
-- ARGV 1 msgpack array: epoch, last written seq.
-- Reply  1 noted, 0 left alone: the bucket is missing, under another epoch, or has noted as much.
-- Keeps  what is noted of an epoch never goes back.
-- Work   O(1). Smallest Redis: 6.2.

local request = cmsgpack.unpack(ARGV[1])
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return cmsgpack.pack({ 0 }) end
local noted = redis.call('HMGET', KEYS[1], 'epoch', 'written_epoch', 'written_seq')
if tonumber(noted[1]) ~= request[1] then return cmsgpack.pack({ 0 }) end
if tonumber(noted[2]) == request[1] and (tonumber(noted[3]) or 0) >= request[2] then
  return cmsgpack.pack({ 0 })
end
redis.call('HSET', KEYS[1], 'written_epoch', request[1], 'written_seq', request[2])
return cmsgpack.pack({ 1 })
