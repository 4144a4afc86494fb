-- Reads one bucket without changing it: for the sold-out flag, the fence, the audit, the goods page.
--
-- KEYS 1 meta (hash)  2 buyers (hash)  3 outbox (stream)  4 released (hash)  5 changes (hash); one
--      hash tag.
-- ARGV none.
-- Reply  msgpack array: head (see bucket.lua), then put, held, buyers, limit, starts, ends, paused,
--        version, length of the outbox (0 where that is no stream), and how far the ledger had
--        written this epoch when it was last asked (note_written.lua). A missing bucket has the head
--        alone. Status 5 goes before 3, and comes also when only a key is lost that admissions do
--        not need: somebody has to say so before a release waits for ever.
-- Work   O(1). Smallest Redis: 6.2.

local status, bucket = read_bucket(KEYS[1], KEYS[2], KEYS[3], 0, 0)
if (status == OK or status == SERVER) and not (is_whole(bucket, KEYS[2], KEYS[3])
    and has_fields(KEYS[4], bucket.released) and has_fields(KEYS[5], bucket.changes)) then
  status = TORN
end
local reply = reply_head(status, bucket)
if bucket then
  for _, name in ipairs({ 'put', 'held', 'buyers', 'limit', 'starts', 'ends', 'paused', 'version' }) do
    reply[#reply + 1] = bucket[name]
  end
  local length = redis.pcall('XLEN', KEYS[3])
  reply[#reply + 1] = type(length) == 'number' and length or 0
  local noted = redis.call('HMGET', KEYS[1], 'written_epoch', 'written_seq')
  reply[#reply + 1] = tonumber(noted[1]) == bucket.epoch and tonumber(noted[2]) or 0
end
return cmsgpack.pack(reply)
