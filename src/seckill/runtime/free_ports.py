"""Ports for the servers that a run starts for itself."""

import contextlib
import secrets
import socket
from pathlib import Path
from typing import Final

__all__ = ["NoFreePort", "choose_port", "is_free"]

_PORT_MIN: Final = 10_000
_PORT_TRIES: Final = 200


class NoFreePort(OSError):  # noqa: N818  -- reads as what it is
    """All ports that were tried are taken."""


def choose_port(kept: int = 0) -> int:
    """A free port of this machine: the kept one if it is free, or a random one.

    Below the range that the kernel takes for outgoing connections: there a client of ours that
    keeps trying to reach a dead server can be given the server's own port, which then connects to
    itself and keeps the server from coming back.

    Raises:
        NoFreePort: none was found; the text names the range.
    """
    if kept and is_free(kept):
        return kept
    highest = max(_outgoing_ports_from(), _PORT_MIN + _PORT_TRIES)
    for _ in range(_PORT_TRIES):
        port = _PORT_MIN + secrets.randbelow(highest - _PORT_MIN)
        if is_free(port):
            return port
    raise NoFreePort(f"no free port was found between {_PORT_MIN} and {highest}")


def is_free(port: int) -> bool:
    """Whether a server could listen on a port of the loopback address now."""
    with socket.socket() as probe:
        # As the server does it: connections of an earlier run that linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _outgoing_ports_from() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return 49_152  # what IANA says, and macOS does
