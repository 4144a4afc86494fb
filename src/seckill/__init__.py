"""Seckill: a flash-sale (秒杀) service.

Never oversell, never sell twice to one user, never lose an order that a buyer was told they have,
and stay up under any load. The rooms and the direction of imports are in ``docs/concepts.md``.
"""

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    # Reading it takes longer than the rest of a small command, and hardly anybody asks.
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # noqa: PLC0415

    return version("seckill")
