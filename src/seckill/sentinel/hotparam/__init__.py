"""Hot-parameter rules: a limit for each value of an argument, so that one cannot crowd out all.

``rule`` is the data and its validity, ``items`` the values with a threshold of their own, ``keys``
when two values are the same, ``manager`` the rules in force, ``slot`` the check in the chain. A
controller is
chosen by the rule: ``token_bucket``, ``value_pacing`` or ``value_concurrency``, one file each.
"""

from seckill.sentinel.hotparam.items import ParamFlowItem
from seckill.sentinel.hotparam.keys import ParamFlowArgument
from seckill.sentinel.hotparam.rule import ParamFlowRule

__all__ = ["ParamFlowArgument", "ParamFlowItem", "ParamFlowRule"]
