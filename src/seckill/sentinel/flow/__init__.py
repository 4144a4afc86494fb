"""Flow rules: how many calls, or how many at once, and what to do with one too many.

``rule`` is the data and its validity, ``manager`` the rules in force, ``slot`` the check in the
chain.
A flow controller is chosen by the rule: ``reject``, ``warm_up``, ``pacing`` or ``warm_up_pacing``,
one file each; a new behaviour is a new file, not a new branch.
"""

from seckill.sentinel.flow.rule import FlowRule

__all__ = ["FlowRule"]
