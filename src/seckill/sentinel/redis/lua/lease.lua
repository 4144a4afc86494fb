-- Leases tokens of some rules to one worker, in one atomic step: notes that the worker is there,
-- takes back what it no longer wants, counts what it used without asking, and grants what fits.
--
-- KEYS 1 workers (hash): worker id -> "last seen ms:1 leasing, 0 on its share:workers it counts
--        on"; field '' is a floor under their number, and when data were lost: "until ms:number:
--        lost ms". Then one key for each rule, a string: what was granted in the last window. All
--        of one hash tag.
-- ARGV 1 JSON object: worker (id, 1..128 bytes); state ("leasing", "sharing": lives on its share of
--        the threshold, "leaving"); workers (it counts on so many; its share is one part of them);
--        listed (1: it ought to be among the workers); silence_ms, forget_ms (when a worker that is
--        not heard of counts as living on its share, and as gone);
--        rules: for each of 0..64 rules an object: count (threshold for one window), each (1: for
--        each worker, 0: for all), window_ms; and as whole numbers >= 0 in units: keep, drop (tokens
--        in hand that stay, that come back), dated (where these are counted, ms, from the last
--        reply), owed (used on credit), want, need (largest single call), had (1: tokens of this
--        rule were granted within the last window); shared: flat list age in ms, units used of the
--        share.
-- Reply  JSON array: now ms, workers known, rank of this worker among them from 0, then for each
--        rule: granted, dated, block (most tokens in hand), retry_ms (0: nothing to wait for),
--        room (1: tokens are left).
-- Keeps  granted in any window <= count, less a share for each worker that is known and does not
--        lease. What is kept counts anew from now, so that it is used while it counts.
-- Work   O(workers + rules * (50 + busy workers)). Smallest Redis: 6.2.

local SLICES, RULES_MAX, WORKERS_MAX, BLOCK_PARTS = 50, 64, 512, 10
local AMOUNTS = { 'keep', 'drop', 'dated', 'owed', 'want', 'need', 'had' }
local request = cjson.decode(ARGV[1])
local rules, me, leaving = request.rules, request.worker, request.state == 'leaving'
if #rules > RULES_MAX or #KEYS ~= #rules + 1 then
  return redis.error_reply('LEASE wants one key for each of at most 64 rules')
end
if type(me) ~= 'string' or me == '' or #me > 128 then
  return redis.error_reply('LEASE wants a worker id of 1 to 128 bytes')
end
for _, rule in ipairs(rules) do
  for _, name in ipairs(AMOUNTS) do
    local units = rule[name]
    if type(units) ~= 'number' or units < 0 or units ~= math.floor(units) then
      return redis.error_reply('LEASE wants a whole number >= 0 for ' .. name)
    end
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Who is there.
local listed = redis.call('HGETALL', KEYS[1])
local gone, known, rank, mine, floor, floor_until, lost_at = {}, 0, 0, false, 0, 0, 0
local apart = {} -- of each worker that does not lease: of how many it knows itself to be one
for i = 1, #listed, 2 do
  local name, first, second, third = listed[i], string.match(listed[i + 1], '^(%d+):(%d+):(%d+)$')
  local seen, number, told = tonumber(first), tonumber(second), tonumber(third)
  if name == '' then
    floor_until, floor, lost_at = seen or 0, number or 0, told or 0
  elseif name == me then
    mine = true
  elseif not seen or now - seen > request.forget_ms then
    gone[#gone + 1] = name
  else
    known = known + 1
    if name < me then rank = rank + 1 end
    if number == 0 or now - seen > request.silence_ms then apart[#apart + 1] = math.max(told, 1) end
  end
end
if not mine and not leaving and known >= WORKERS_MAX then
  return redis.error_reply('LEASE knows 512 workers and takes no more')
end
if not leaving then known = known + 1 end
if now > floor_until then floor = 0 end
-- What was granted is lost as well: nothing more before the windows of that time are over.
if request.listed == 1 and not mine then lost_at = now end
-- A worker that Redis has forgotten, or that began without it, may know of others like it.
if not mine and request.workers > math.max(floor, 1) then
  floor, floor_until = request.workers, now + request.forget_ms
end
for _ = known + 1, floor do apart[#apart + 1] = floor end
known = math.max(known, floor)
local counts_on = math.max(1, math.min(request.workers, known))
if request.state == 'sharing' then apart[#apart + 1] = counts_on end

-- What a rule's key says of the last window; a new one if it is missing, or is not ours.
local function read_window(key, slice)
  local raw = redis.pcall('GET', key)
  if type(raw) == 'string' then
    local read, found = pcall(cmsgpack.unpack, raw)
    if read and type(found) == 'table' and type(found.units) == 'table'
        and type(found.busy) == 'table' and type(found.born) == 'number' then return found end
  end
  return { units = {}, busy = {}, born = slice }, true
end

local reply, windows = { now, known, rank }, {}
for i, rule in ipairs(rules) do
  local window_ms = math.max(1, math.floor(rule.window_ms))
  local slice_ms = math.ceil(window_ms / SLICES)
  local slice = now - now % slice_ms
  -- A threshold of 0.29 for 100 s is 29, whatever doubles make of it.
  local total = math.floor(rule.count * (rule.each == 1 and known or 1) + 1e-6)
  local found, is_new = read_window(KEYS[i + 1], slice)
  local units = {}
  local function add(start, count)
    if count > 0 and start + slice_ms + window_ms > now then
      start = math.min(start, slice) -- a clock that went back
      units[start] = (units[start] or 0) + count
    end
  end
  for j = 1, #found.units, 2 do add(found.units[j], found.units[j + 1]) end
  -- This key alone was lost, or all were.
  if rule.had == 1 and rule.dated < found.born then add(slice, total) end
  if is_new then add(lost_at - lost_at % slice_ms, total) end
  for j = 1, #rule.shared, 2 do
    local at = now - rule.shared[j]
    add(at - at % slice_ms, rule.shared[j + 1])
  end
  if units[rule.dated] then
    units[rule.dated] = math.max(0, units[rule.dated] - rule.keep - rule.drop)
  end
  add(slice, rule.keep + rule.owed)

  local busy, busy_flat = 1, {}
  for j = 1, #found.busy, 2 do
    if found.busy[j] ~= me and now - found.busy[j + 1] <= window_ms then
      busy = busy + 1
      busy_flat[#busy_flat + 1], busy_flat[#busy_flat + 2] = found.busy[j], found.busy[j + 1]
    end
  end
  if rule.want > 0 then busy_flat[#busy_flat + 1], busy_flat[#busy_flat + 2] = me, now end

  local used, oldest = 0, nil
  for start, count in pairs(units) do
    used = used + count
    if count > 0 and (not oldest or start < oldest) then oldest = start end
  end
  -- Those who live on their share may use all of it, and go by what they were told last.
  local left = total - used
  for _, told in ipairs(apart) do left = left - math.ceil(total / told) end
  local block = math.max(1, math.floor(total / BLOCK_PARTS / busy))
  local most = math.max(block, math.min(rule.need, total))
  local granted = 0
  if request.state == 'leasing' then
    granted = math.max(0, math.min(rule.want, most - rule.keep, left))
  end
  add(slice, granted)
  local retry_ms = 0
  if granted < rule.want and left <= granted then
    retry_ms = oldest and oldest + slice_ms + window_ms - now or slice_ms * 5
  end
  local units_flat = {}
  for start, count in pairs(units) do
    if count > 0 then
      units_flat[#units_flat + 1], units_flat[#units_flat + 2] = start, count
    end
  end
  windows[i] = { cmsgpack.pack({ units = units_flat, busy = busy_flat, born = found.born }), window_ms * 2 + 1000 }
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3] = granted, slice, block
  reply[at + 4], reply[at + 5] = retry_ms, left > granted and 1 or 0
end

-- From here on it only writes.
if #gone > 0 then redis.call('HDEL', KEYS[1], unpack(gone)) end
if leaving then
  redis.call('HDEL', KEYS[1], me)
else
  local leases = request.state == 'leasing' and 1 or 0
  redis.call('HSET', KEYS[1], me, string.format('%.0f:%d:%d', now, leases, counts_on))
end
if floor > 0 or lost_at > 0 then
  redis.call('HSET', KEYS[1], '', string.format('%.0f:%d:%.0f', floor_until, floor, lost_at))
end
redis.call('PEXPIRE', KEYS[1], request.forget_ms * 2)
for i, window in ipairs(windows) do
  redis.call('SET', KEYS[i + 1], window[1], 'PX', window[2])
end
return cjson.encode(reply)
