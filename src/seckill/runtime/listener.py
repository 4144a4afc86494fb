"""The listening sockets of a service: made and held by the supervisor, one for each web process.

They outlive every web process. A connection that has not been accepted yet waits in the queue of
its socket until the process there is started again, so a killed web process takes only those with
it that it had accepted, and nobody is refused.
"""

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from seckill.runtime.bind_address import BindAddress
from seckill.runtime.errors import AddressUnusable

__all__ = ["BACKLOG", "backlog_note", "open_listeners", "raise_open_files_limit"]

BACKLOG: Final = 16_384
"""Connections that may wait to be accepted: a rush of ten thousand buyers comes at once."""

_OPEN_FILES_MAX: Final = 1_048_576
_SPREADS: Final = sys.platform == "linux"


def open_listeners(address: BindAddress, processes: int) -> list[socket.socket]:
    """Take the address: one listening socket for each web process. ``::`` takes IPv4 as well.

    On Linux each process has a socket of its own, and the kernel spreads the connections over
    them. One socket shared by all does not: whichever process wakes first accepts whatever waits,
    and 64 connections that came together were seen to end up with one process of two. Elsewhere
    there is no such spreading, and all get the same socket.

    Raises:
        AddressUnusable: somebody else has it, it is not this machine's, or it may not be taken.
    """
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise AddressUnusable(
            f"cannot serve on {address}: the host is not known ({error.strerror})"
        ) from error
    # A name such as localhost may stand for both; clients of old habit try IPv4.
    family, _, _, _, where = min(found, key=lambda info: info[0] != socket.AF_INET)
    both = address.host == "::"
    sockets: list[socket.socket] = []
    try:
        # A socket that shares its port with nobody finds out whether the address is taken: those
        # below would share it even with another service of the same user, without a word.
        with _bound(family, where, both=both, shared=False) as probe:
            where = (where[0], probe.getsockname()[1], *where[2:])
        sockets.extend(
            _bound(family, where, both=both, shared=_SPREADS)
            for _ in range(processes if _SPREADS else 1)
        )
        # Only now: a socket that listens before the others are bound would get all connections.
        for listener in sockets:
            listener.listen(BACKLOG)
            listener.setblocking(False)
    except OSError as error:
        for listener in sockets:
            listener.close()
        raise AddressUnusable(
            f"cannot serve on {address}: {(error.strerror or str(error)).lower()}; "
            "choose another address with --bind"
        ) from error
    return [sockets[number % len(sockets)] for number in range(processes)]


def _bound(family: int, where: Any, *, both: bool, shared: bool) -> socket.socket:
    """A socket bound to an address; with ``shared`` others may bind to it too."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Inherited by every accepted connection: an answer never waits for an ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not both))
        listener.bind(where)
    except OSError:
        listener.close()
        raise
    return listener


def address_of(listener: socket.socket, asked: BindAddress) -> BindAddress:
    """The address really taken: as asked, with the port that port 0 has become."""
    return BindAddress(asked.host, int(listener.getsockname()[1]))


def backlog_note() -> str:
    """A sentence when the kernel lets fewer connections wait than asked for; else empty."""
    with suppress(OSError, ValueError):
        allowed = int(Path("/proc/sys/net/core/somaxconn").read_text())
        if allowed < BACKLOG:
            return (
                f"this machine lets {allowed:,} connections wait to be accepted; for a rush of "
                f"more, raise it with `sysctl net.core.somaxconn={BACKLOG}`"
            )
    return ""


def raise_open_files_limit() -> int:
    """Let this process and its children open as many files as the system allows them.

    Returns:
        How many that are now.
    """
    if os.name != "posix":
        return 0
    import resource  # noqa: PLC0415  -- there is none on other systems

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = _OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else hard
    if soft < highest:
        with suppress(ValueError, OSError):  # macOS names a hard limit that it does not allow
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    return int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
