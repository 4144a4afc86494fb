-- Stops a bucket until it is opened anew: no script trusts it any more, and none carries it on.
--
-- KEYS 1 meta (hash).
-- Reply  1 fenced off, 0 there is no bucket.
-- Work   O(1). Smallest Redis: 6.2.

if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return cmsgpack.pack({ 0 }) end
redis.call('HSET', KEYS[1], 'server', FENCED)
return cmsgpack.pack({ 1 })
