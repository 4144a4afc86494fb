-- Decides a batch of purchase requests of one bucket, in one atomic step: checks fence, window,
-- duplicate, limit and stock; deducts, records the buyer and writes the outbox.
--
-- KEYS 1 meta (hash)  2 buyers (hash)  3 outbox (stream); one hash tag.
-- ARGV 1 msgpack array: epoch, highest acknowledged seq of the caller, touch (0|1), then for each
--        of 1..512 requests: user id (bytes), attempt id ([A-Za-z0-9_-]+), quantity (1..100).
--        touch 1: write also when nothing was admitted but a reservation is reported, so that a
--        WAIT or WAITAOF behind this call on the same connection covers it.
--      2 only where some of them belong to a trace: msgpack map from the number of a request, from
--        1, to its traceparent (55 characters). Whoever is admitted takes it along in the outbox.
-- Reply  msgpack array: head (see bucket.lua), then for each request, in order: code, epoch, seq, n.
--        code 1 success: epoch and seq of the reservation, n 1 if this attempt had it before, else 0
--        code 2 duplicate, 3 over the limit: epoch and seq of the user's latest reservation (0 0: none),
--               n units that count against the limit
--        code 9 this attempt had asked for another quantity: epoch and seq of its reservation
--        code 0 sold out · 7 not enough left, n units left · 5 ended · 8 paused
--        code 4 not started: n is the instant of the start in ms
--        With a status other than 0 there are no codes: nothing was decided, nothing was written.
-- Keeps  stock >= 0; a user's units <= limit; stock + held = put; seq counts each admission;
--        a batch sent again gets the same answers.
-- Work   O(requests + reservations of their users), each user's read once; 7 commands and, with
--        an admission, 3 more. Smallest Redis: 6.2.

local REQUESTS_MAX, QUANTITY_MAX = 512, 100
local request = cmsgpack.unpack(ARGV[1])
local count = (#request - 3) / 3
if count < 1 or count > REQUESTS_MAX or count ~= math.floor(count) then
  return redis.error_reply('BATCH must have 1 to 512 requests of three values each')
end
if request[1] < 1 then return redis.error_reply('BATCH needs the epoch that its sender knows') end

local traces = ARGV[2] and cmsgpack.unpack(ARGV[2])
local users = {}
for i = 1, count do
  users[i] = request[i * 3 + 1]
  local quantity = request[i * 3 + 3]
  if type(quantity) ~= 'number' or quantity < 1 or quantity > QUANTITY_MAX
      or quantity ~= math.floor(quantity) then
    return redis.error_reply('BATCH quantity must be an integer from 1 to 100')
  end
end

local status, bucket = read_bucket(KEYS[1], KEYS[2], KEYS[3], request[1], request[2])
local reply = reply_head(status, bucket)
if status ~= OK then return cmsgpack.pack(reply) end

local refused_by_window
if bucket.ends > 0 and bucket.now >= bucket.ends then refused_by_window = 5
elseif bucket.now < bucket.starts then refused_by_window = 4
elseif bucket.paused ~= 0 then refused_by_window = 8 end

-- What a record of the buyers hash says. A spent reservation (release.lua) counts as held here, and
-- its attempt, with a `!` in front, is nobody's. Kept for the rest of the batch, so that one buyer's
-- thousand clicks cost one reading. O(reservations in it).
local function read_buyer(record)
  local buyer = { held = 0, epoch = 0, seq = 0, record = record, attempts = {} }
  for e, s, q, attempt in string.gmatch(record, '(%d+)%.(%d+)%.(%d+)%.([^,]+)') do
    local epoch, seq, quantity = tonumber(e), tonumber(s), tonumber(q)
    buyer.held, buyer.epoch, buyer.seq = buyer.held + quantity, epoch, seq
    buyer.attempts[attempt] = { epoch, seq, quantity }
  end
  return buyer
end

local found = redis.call('HMGET', KEYS[2], unpack(users))
-- Locals and running positions in the loop: it is most of the price of an admission.
local limit, stock, held_units, seq = bucket.limit, bucket.stock, bucket.held, bucket.seq
local epoch, buyers_count, item_head = bucket.epoch, bucket.buyers, integer(bucket.epoch) .. '.'
-- user -> what the requests before this one have left: a buyer, a record that was not needed since
local buyers = {}
local changed, place_of, changed_length = {}, {}, 0 -- user, record, … for HSET; where a user stands in it
local admitted, admitted_length, touched = {}, 0, false
local traced = {} -- seq, traceparent, …
local reply_length = #reply
for i = 1, count do
  local user, attempt, quantity = users[i], request[i * 3 + 2], request[i * 3 + 3]
  local buyer = buyers[user] or found[i]
  if type(buyer) == 'string' then
    buyer = read_buyer(buyer)
    buyers[user] = buyer
  end
  local own = buyer and buyer.attempts[attempt]
  local held = buyer and buyer.held or 0
  local code, its_epoch, its_seq, n = 0, 0, 0, 0
  if own then
    its_epoch, its_seq, touched = own[1], own[2], true
    if own[3] == quantity then code, n = 1, 1 else code = 9 end
  elseif refused_by_window then
    code = refused_by_window
    if code == 4 then n = bucket.starts end
  elseif held + quantity > limit then
    code, n = (limit == 1 and held > 0) and 2 or 3, held
    if buyer then its_epoch, its_seq, touched = buyer.epoch, buyer.seq, true end
  elseif stock == 0 then
    code = 0
  elseif stock < quantity then
    code, n = 7, stock
  else
    stock, held_units, seq = stock - quantity, held_units + quantity, seq + 1
    code, its_epoch, its_seq = 1, epoch, seq
    -- seq and quantity stay below 10^14, up to which Lua writes an integer as one.
    local item = item_head .. seq .. '.' .. quantity .. '.' .. attempt
    local record = item
    if buyer then
      record = buyer.record .. ',' .. item
      buyer.record, buyer.held, buyer.epoch, buyer.seq = record, held + quantity, epoch, seq
      buyer.attempts[attempt] = { epoch, seq, quantity }
    else
      buyers[user], buyers_count = item, buyers_count + 1
    end
    local place = place_of[user]
    if not place then
      place = changed_length + 2
      changed_length = place
      place_of[user], changed[place - 1] = place, user
    end
    changed[place] = record
    admitted[admitted_length + 1], admitted[admitted_length + 2] = seq, user
    admitted[admitted_length + 3], admitted[admitted_length + 4] = quantity, attempt
    admitted_length = admitted_length + 4
    if traces and traces[i] then
      traced[#traced + 1], traced[#traced + 2] = seq, traces[i]
    end
  end
  reply[reply_length + 1], reply[reply_length + 2] = code, its_epoch
  reply[reply_length + 3], reply[reply_length + 4] = its_seq, n
  reply_length = reply_length + 4
end
reply[4], reply[5] = seq, stock

if admitted_length > 0 then
  redis.call('HSET', KEYS[2], unpack(changed))
  redis.call('HSET', KEYS[1], 'seq', seq, 'stock', stock, 'held', held_units, 'buyers', buyers_count)
  local entry = cmsgpack.pack({ 'a', epoch, bucket.now, admitted })
  if #traced > 0 then redis.call('XADD', KEYS[3], '*', 'e', entry, 't', cmsgpack.pack(traced))
  else redis.call('XADD', KEYS[3], '*', 'e', entry) end
elseif touched and request[3] == 1 then
  redis.call('HSET', KEYS[1], 'seq', seq)
end
return cmsgpack.pack(reply)
