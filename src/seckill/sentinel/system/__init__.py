"""System rules: protection of the whole process, by its load, CPU, response time, calls and rate.

``rule`` is the data and its validity, ``manager`` the limits in force, ``slot`` the check in the
chain, ``status`` where load and CPU come from.
"""

from seckill.sentinel.system.rule import SystemRule
from seckill.sentinel.system.status import HostStatus, SystemStatus

__all__ = ["HostStatus", "SystemRule", "SystemStatus"]
