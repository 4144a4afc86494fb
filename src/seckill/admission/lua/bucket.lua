-- Shared head of every script: reads one bucket and says whether it may be trusted.
-- The loader (scripts.py) puts this text in front of each script, since Redis knows no include.
--
-- meta (hash): epoch, server, seq, stock, put, held, buyers, released, changes,
--              limit, starts, ends (0: open end), paused, version. All integers but `server`.
-- Invariant, true between any two commands: stock + held = put.
--
-- Status, the first element of every reply (admission/scripts.py: Status):
--   0 ok
--   1 missing   the bucket is not there, or not whole
--   2 epoch     the caller knows another epoch than the bucket
--   3 server    the bucket was opened under another server: Redis restarted, failed over or resynchronised;
--               or it is doubted, and waits to be judged (doubt.lua)
--   4 behind    the caller saw a higher seq than the bucket has: Redis went back in time
--   5 torn      a key of the bucket was lost while others stayed, or is of another type
--   6 fenced    it was stopped, for a rebuild, and no carrying on is allowed (fence_off.lua)
-- Source: rules 3 and 4 of the fence. Smallest Redis: 6.2.

local OK, MISSING, EPOCH, SERVER, BEHIND, TORN, FENCED_OFF = 0, 1, 2, 3, 4, 5, 6
-- These stand in the place of the server identity, and equal none.
local FENCED, DOUBTED = 'fenced', 'doubted'

-- What is kept of a release or a stock change, so that it is made once: its place, as `epoch.seq`.
-- Returns the seq at which it was made; 0 when it was not; MADE_EARLIER under an earlier epoch, whose
-- seqs say nothing in this one: its event is on its way, and carrying on has counted it.
local MADE_EARLIER = -1
local function seq_made(bucket, kept)
  if not kept then return 0 end
  local epoch, seq = string.match(kept, '^(%d+)%.(%d+)$')
  return tonumber(epoch) == bucket.epoch and tonumber(seq) or MADE_EARLIER
end

-- Run id and replication id of the server that runs this script: a restart changes the first,
-- a failover or a full resynchronisation the second.
-- Both have 40 hexadecimal digits; a plain search is a tenth of the price of a pattern.
local function server_identity()
  local function value_of(section, name)
    local text = redis.call('INFO', section)
    local _, at = string.find(text, name, 1, true)
    return string.sub(text, at + 1, at + 40)
  end
  return value_of('server', 'run_id:') .. '.' .. value_of('replication', 'master_replid:')
end

local function integer(value)
  return string.format('%.0f', value)
end

local FIELDS = { 'epoch', 'server', 'seq', 'stock', 'put', 'held', 'buyers', 'released', 'changes',
  'limit', 'starts', 'ends', 'paused', 'version' }

-- Whether a hash has as many fields as were counted; a key of another type has none. O(1).
local function has_fields(key, count)
  return redis.pcall('HLEN', key) == count
end

-- Whether buyers and outbox are there as the bucket's counters say. O(1).
local function is_whole(bucket, buyers_key, outbox_key)
  return has_fields(buyers_key, bucket.buyers) and redis.call('TYPE', outbox_key).ok == 'stream'
end

-- Returns status and bucket. `epoch` 0 skips the comparison with the caller's epoch and seq.
-- The bucket is nil when it is missing. Keys of another type are lost keys: no error is raised
-- for them, neither here nor by the writes that follow an `ok`. O(1).
local function read_bucket(meta_key, buyers_key, outbox_key, epoch, acked_seq)
  local values = redis.pcall('HMGET', meta_key, unpack(FIELDS))
  if values.err then return MISSING, nil end
  local bucket = { server = values[2] }
  for i, name in ipairs(FIELDS) do
    if name ~= 'server' then
      local number = tonumber(values[i])
      if not number then return MISSING, nil end
      bucket[name] = number
    end
  end
  local time = redis.call('TIME')
  bucket.now = time[1] * 1000 + math.floor(time[2] / 1000)
  if bucket.server == FENCED then return FENCED_OFF, bucket end
  if bucket.server ~= server_identity() then return SERVER, bucket end
  if not is_whole(bucket, buyers_key, outbox_key) then return TORN, bucket end
  if epoch ~= 0 then
    if bucket.epoch ~= epoch then return EPOCH, bucket end
    if bucket.seq < acked_seq then return BEHIND, bucket end
  end
  return OK, bucket
end

-- The reply's head: status, clock of this server in ms, epoch, seq, stock.
local function reply_head(status, bucket)
  if not bucket then return { status, 0, 0, 0, 0 } end
  return { status, bucket.now, bucket.epoch, bucket.seq, bucket.stock }
end
