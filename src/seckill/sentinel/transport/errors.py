"""What the transport raises.

::

    SentinelError
    └── TransportError
        ├── CommandRefused      a command cannot be carried out as it was given: answered with 400
        └── PortUnavailable     no port could be had for commands
"""

from __future__ import annotations

from seckill.sentinel.errors import SentinelError


class TransportError(SentinelError):
    """Something is wrong between the engine and who looks at it."""


class CommandRefused(TransportError):  # noqa: N818  reads as what it is
    """A command cannot be carried out as it was given. The text is the answer."""


class PortUnavailable(TransportError):  # noqa: N818  as above
    """No port could be had for commands: all that were tried are taken, or may not be used."""
