"""Seckill: a flash-sale (秒杀) service.

Never oversell, never sell twice to one user, never lose an order that a buyer was told they have,
and stay up under any load. The rooms and the direction of imports are in ``docs/concepts.md``.
"""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("seckill")
