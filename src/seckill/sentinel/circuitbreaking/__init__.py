"""Circuit breakers ("degrade" rules): stop calling what is slow or failing, and try again later.

``rule`` is the data and its validity, ``manager`` the rules in force, ``breaker`` the state
machine, ``slow_ratio`` and ``failures`` what opens it, ``slot`` the check in the chain.
"""

from seckill.sentinel.circuitbreaking.breaker import BreakerState, StateChange
from seckill.sentinel.circuitbreaking.rule import DegradeRule

__all__ = ["BreakerState", "DegradeRule", "StateChange"]
