"""Redis for flow control: one limit for a whole service, and rules that outlive every process.

The rest of ``seckill.sentinel`` does not know of this package and needs no Redis client. Whoever
wants it imports it, and hands the objects to ``Sentinel``::

    source = RedisTokenSource(client, namespace="shop", worker_id="web-1")
    task = asyncio.create_task(source.run())

    store = LayeredRuleStore(RedisRuleStore(other_client, namespace="shop"), FileRuleStore(folder))
    sentinel = Sentinel(token_source=source, rule_store=store)

Clients are made outside and never closed here.
"""

from seckill.sentinel.redis.lease_book import LeaseSettings, TokenSourceStatus
from seckill.sentinel.redis.rule_store import RedisRuleStore
from seckill.sentinel.redis.token_source import RedisTokenSource, ThreadedRedisTokenSource

__all__ = [
    "LeaseSettings",
    "RedisRuleStore",
    "RedisTokenSource",
    "ThreadedRedisTokenSource",
    "TokenSourceStatus",
]
