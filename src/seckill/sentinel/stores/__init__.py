"""Places where rules live on.

``FileRuleStore`` needs nothing but a folder. ``seckill.sentinel.redis.RedisRuleStore`` is seen by
all hosts, and ``LayeredRuleStore`` puts one before the other. Whatever implements ``RuleStore`` can
stand in their place.
"""

from seckill.sentinel.stores.errors import (
    NothingToUndo,
    RuleStoreAway,
    RuleStoreBusy,
    RuleStoreDamaged,
    RuleStoreError,
)
from seckill.sentinel.stores.file_store import FileRuleStore
from seckill.sentinel.stores.follower import RuleFollower
from seckill.sentinel.stores.layered import LayeredRuleStore, VersionedStore
from seckill.sentinel.stores.rule_files import kind_of_file
from seckill.sentinel.stores.version import RuleVersion

__all__ = [
    "FileRuleStore",
    "LayeredRuleStore",
    "NothingToUndo",
    "RuleFollower",
    "RuleStoreAway",
    "RuleStoreBusy",
    "RuleStoreDamaged",
    "RuleStoreError",
    "RuleVersion",
    "VersionedStore",
    "kind_of_file",
]
