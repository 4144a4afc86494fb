-- What a careful service without batches does: one purchase in one script call.
-- KEYS 1 buyers (hash)  2 stock (string)  3 outbox (stream).  ARGV 1 user id.
-- Reply 1 success, 0 sold out, 2 duplicate.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 2 end
local stock = tonumber(redis.call('GET', KEYS[2]) or '0')
if stock <= 0 then return 0 end
redis.call('DECR', KEYS[2])
redis.call('HSET', KEYS[1], ARGV[1], '1')
redis.call('XADD', KEYS[3], '*', 'user', ARGV[1])
return 1
