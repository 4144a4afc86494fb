"""The one listening socket of a service: made by the supervisor, shared by all web processes.

It outlives every web process. A connection that has not been accepted yet waits in its queue, so a
killed web process takes only those with it that it had accepted.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from seckill.runtime.bind_address import BindAddress
from seckill.runtime.errors import AddressUnusable

__all__ = ["BACKLOG", "backlog_note", "open_listener", "raise_open_files_limit"]

BACKLOG: Final = 16_384
"""Connections that may wait to be accepted: a rush of ten thousand buyers comes at once."""

_OPEN_FILES_MAX: Final = 1_048_576


def open_listener(address: BindAddress) -> socket.socket:
    """Take the address. Non-blocking; ``::`` takes IPv4 as well.

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
    family, kind, protocol, _, where = min(found, key=lambda info: info[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            both = address.host == "::"
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not both))
        listener.bind(where)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise AddressUnusable(
            f"cannot serve on {address}: {(error.strerror or str(error)).lower()}; "
            "choose another address with --bind"
        ) from error
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
