-- Gives the units of reservations back to the stock, each once.
--
-- KEYS 1 meta (hash)  2 buyers (hash)  3 outbox (stream)  4 released (hash); one hash tag.
-- ARGV 1 msgpack array: epoch in which these releases are valid, then for each of 1..256
--        reservations: user id (bytes), epoch and seq of the reservation, spent (0|1).
--        spent 1: the units go back to the stock, and the reservation stays under its user with a `!`
--        in front of its attempt id, so that it counts against the limit (admit.lua) and is held by
--        nobody: the sale lets no one buy again who gave an order up.
-- Reply  msgpack array: head (see bucket.lua), then for each reservation the seq of its release
--        (the first one's, when it had been released before), or 0: the user does not hold it here,
--        or -1: it was released under an earlier epoch.
--        With a status other than 0: nothing was released.
-- Keeps  stock + held = put, where what is spent is not held; a reservation is released at most once;
--        seq counts each release.
-- Work   O(reservations). Smallest Redis: 6.2.

local RESERVATIONS_MAX = 256
local request = cmsgpack.unpack(ARGV[1])
local count = (#request - 1) / 4
if count < 1 or count > RESERVATIONS_MAX or count ~= math.floor(count) then
  return redis.error_reply('BATCH must have 1 to 256 reservations of four values each')
end
for i = 1, count do
  if type(request[i * 4 - 1]) ~= 'number' or type(request[i * 4]) ~= 'number' then
    return redis.error_reply('BATCH reservations are named by two integers')
  end
end

local status, bucket = read_bucket(KEYS[1], KEYS[2], KEYS[3], request[1], 0)
if status == OK and not has_fields(KEYS[4], bucket.released) then status = TORN end
local reply = reply_head(status, bucket)
if status ~= OK then return cmsgpack.pack(reply) end

local released = {}
for i = 1, count do
  local user = request[i * 4 - 2]
  local name = integer(request[i * 4 - 1]) .. '.' .. integer(request[i * 4])
  local seq = seq_made(bucket, redis.call('HGET', KEYS[4], name))
  local record = seq == 0 and redis.call('HGET', KEYS[2], user)
  if record then
    local kept, quantity = {}, nil
    for item in string.gmatch(record, '[^,]+') do
      local place, q, attempt = string.match(item, '^(%d+%.%d+)%.(%d+)%.([^!].*)$')
      if place ~= name then
        kept[#kept + 1] = item
      else
        quantity = tonumber(q)
        if request[i * 4 + 1] == 1 then kept[#kept + 1] = place .. '.' .. q .. '.!' .. attempt end
      end
    end
    if quantity then
      bucket.stock, bucket.held, bucket.seq =
        bucket.stock + quantity, bucket.held - quantity, bucket.seq + 1
      seq, bucket.released = bucket.seq, bucket.released + 1
      if #kept == 0 then
        redis.call('HDEL', KEYS[2], user)
        bucket.buyers = bucket.buyers - 1
      else
        redis.call('HSET', KEYS[2], user, table.concat(kept, ','))
      end
      redis.call('HSET', KEYS[4], name, integer(bucket.epoch) .. '.' .. integer(seq))
      local at = #released
      released[at + 1], released[at + 2], released[at + 3], released[at + 4], released[at + 5] =
        seq, user, quantity, request[i * 4 - 1], request[i * 4]
    end
  end
  reply[#reply + 1] = seq
end
reply[4], reply[5] = bucket.seq, bucket.stock

if #released > 0 then
  redis.call('HSET', KEYS[1], 'seq', bucket.seq, 'stock', bucket.stock, 'held', bucket.held,
    'buyers', bucket.buyers, 'released', bucket.released)
  redis.call('XADD', KEYS[3], '*', 'e', cmsgpack.pack({ 'r', bucket.epoch, bucket.now, released }))
end
return cmsgpack.pack(reply)
