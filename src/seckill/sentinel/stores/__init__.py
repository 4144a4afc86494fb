"""Places where rules live on.

``FileRuleStore`` needs nothing but a folder. Whatever implements ``RuleStore`` can stand in its
place.
"""

from seckill.sentinel.stores.errors import (
    NothingToUndo,
    RuleStoreBusy,
    RuleStoreDamaged,
    RuleStoreError,
)
from seckill.sentinel.stores.file_store import FileRuleStore
from seckill.sentinel.stores.follower import RuleFollower
from seckill.sentinel.stores.rule_files import kind_of_file
from seckill.sentinel.stores.version import RuleVersion

__all__ = [
    "FileRuleStore",
    "NothingToUndo",
    "RuleFollower",
    "RuleStoreBusy",
    "RuleStoreDamaged",
    "RuleStoreError",
    "RuleVersion",
    "kind_of_file",
]
