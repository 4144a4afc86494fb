-- Opens a bucket under a new epoch: a fresh one, or one rebuilt from the ledger.
--
-- KEYS 1 meta (hash)  2 buyers (hash)  3 outbox (stream)  4 released (hash)  5 changes (hash)
--      6 staged buyers (hash): the buyers of a rebuilt bucket; absent for a fresh one. One hash tag.
-- ARGV 1 msgpack array: epoch, put, held, buyers, limit, starts, ends, paused, version.
--      2 name of the consumer group of the outbox.
-- Reply  msgpack array: head (see bucket.lua). Status 2: the bucket has this epoch or a later one,
--        and was left alone. Status 5: the staged buyers are not as many as said.
-- Keeps  an epoch never goes back; stock + held = put; the outbox outlives every epoch.
-- Work   O(1): old keys are unlinked, not deleted. Smallest Redis: 6.2.

local request = cmsgpack.unpack(ARGV[1])
local epoch, put, held, buyers = request[1], request[2], request[3], request[4]
local is_hash = redis.call('TYPE', KEYS[1]).ok == 'hash'
local old_epoch = is_hash and tonumber(redis.call('HGET', KEYS[1], 'epoch')) or 0
if old_epoch >= epoch then return cmsgpack.pack({ EPOCH, 0, old_epoch, 0, 0 }) end
if redis.call('HLEN', KEYS[6]) ~= buyers then return cmsgpack.pack({ TORN, 0, old_epoch, 0, 0 }) end
if held > put then return redis.error_reply('OPEN more units are held than put on sale') end

redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[4], KEYS[5])
if redis.call('TYPE', KEYS[3]).ok ~= 'stream' then redis.call('UNLINK', KEYS[3]) end
if buyers > 0 then redis.call('RENAME', KEYS[6], KEYS[2]) end
redis.call('HSET', KEYS[1], 'epoch', epoch, 'server', server_identity(), 'seq', 0,
  'stock', put - held, 'put', put, 'held', held, 'buyers', buyers, 'released', 0, 'changes', 0,
  'limit', request[5], 'starts', request[6], 'ends', request[7], 'paused', request[8],
  'version', request[9])
redis.pcall('XGROUP', 'CREATE', KEYS[3], ARGV[2], '0', 'MKSTREAM') -- BUSYGROUP: it is there
return cmsgpack.pack({ OK, 0, epoch, 0, put - held })
