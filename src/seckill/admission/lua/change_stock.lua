-- Puts more units on sale, or takes unsold ones off, once per change id.
--
-- KEYS 1 meta (hash)  2 buyers (hash)  3 outbox (stream)  4 changes (hash); one hash tag.
-- ARGV 1 msgpack array: epoch, change id (1..64 bytes), signed difference in units (not 0).
-- Reply  msgpack array: head (see bucket.lua), then the seq at which the change was applied (the
--        first time's, when it had been applied before), or 0: fewer units are left than taken, or
--        -1: it was applied under an earlier epoch.
--        With a status other than 0: nothing was changed.
-- Keeps  stock >= 0; stock + held = put; seq counts each change.
-- Work   O(1). Smallest Redis: 6.2.

local DELTA_MAX = 100000000
local request = cmsgpack.unpack(ARGV[1])
local change_id, delta = request[2], request[3]
if type(delta) ~= 'number' or delta == 0 or math.abs(delta) > DELTA_MAX or delta ~= math.floor(delta) then
  return redis.error_reply('CHANGE difference must be an integer other than 0 within 100000000')
end

local status, bucket = read_bucket(KEYS[1], KEYS[2], KEYS[3], request[1], 0)
if status == OK and not has_fields(KEYS[4], bucket.changes) then status = TORN end
local reply = reply_head(status, bucket)
if status ~= OK then return cmsgpack.pack(reply) end

local seq = seq_made(bucket, redis.call('HGET', KEYS[4], change_id))
if seq == 0 and bucket.stock + delta >= 0 then
  seq = bucket.seq + 1
  redis.call('HSET', KEYS[1], 'seq', seq, 'stock', bucket.stock + delta, 'put', bucket.put + delta,
    'changes', bucket.changes + 1)
  redis.call('HSET', KEYS[4], change_id, integer(bucket.epoch) .. '.' .. integer(seq))
  redis.call('XADD', KEYS[3], '*', 'e',
    cmsgpack.pack({ 's', bucket.epoch, bucket.now, { seq, change_id, delta } }))
  reply[4], reply[5] = seq, bucket.stock + delta
end
reply[#reply + 1] = seq
return cmsgpack.pack(reply)
