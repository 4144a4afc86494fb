-- Lets a bucket that lost nothing go on under a new epoch, on the server that it is on now.
--
-- KEYS 1 meta (hash)  2 buyers (hash)  3 outbox (stream); one hash tag.
-- ARGV 1 msgpack array: epoch to leave, its last seq, epoch to go on under.
-- Reply  msgpack array: head (see bucket.lua). Status 2 with the new epoch: it was done before.
--        Status 4: the bucket's seq is not the one that was judged. Status 1, 2, 5, 6: left alone.
-- Keeps  stock, buyers and outbox as they are; seq starts again at 0 in the new epoch.
-- Work   O(1). Smallest Redis: 6.2.

local request = cmsgpack.unpack(ARGV[1])
local status, bucket = read_bucket(KEYS[1], KEYS[2], KEYS[3], 0, 0)
if bucket and (status == OK or status == SERVER) then
  if not is_whole(bucket, KEYS[2], KEYS[3]) then
    status = TORN
  elseif bucket.epoch ~= request[1] then
    status = EPOCH
  elseif bucket.seq ~= request[2] then
    status = BEHIND
  else
    status = OK
    bucket.epoch, bucket.seq = request[3], 0
    redis.call('HSET', KEYS[1], 'epoch', bucket.epoch, 'seq', 0, 'server', server_identity())
  end
end
return cmsgpack.pack(reply_head(status, bucket))
