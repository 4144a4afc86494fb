"""What can be set about the transport."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from seckill.sentinel.transport.access import LOOPBACK

if TYPE_CHECKING:
    from pathlib import Path

PROTOCOL_VERSION: Final = "1.8.8"
"""The Sentinel whose commands we speak. From 1.7.1 on the dashboard writes by POST."""

PORT_DEFAULT: Final = 8719
PORT_MAX: Final = 65_535
APP_LENGTH_MAX: Final = 256
APP_TYPE_COMMON: Final = 0
MEBIBYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """Everything that can be set about one ``SentinelTransport``.

    Attributes:
        app: the name under which the dashboard shows this service.
        host: address to listen on for commands; ``0.0.0.0`` or ``::`` for all of the machine's.
        port: to listen on; the next free one is taken if it is not free. 0 means any.
        allow: addresses and networks that may command without a token.
        token: who presents it may command from anywhere; empty means nobody may.
        host_names: names under which the command port may be addressed, besides literal addresses
            and ``localhost``. Guards against pages in a browser on an allowed machine.
        dashboards: ``host:port`` or a URL each; all of them get heartbeats.
        heartbeat_ip: told to the dashboards instead of the address that reaches them.
        heartbeat_interval_ms: between two heartbeats.
        heartbeat_delay_ms: before the first.
        metric_folder: where seconds are written; None keeps the last minutes in memory only.
        metric_file_bytes_max: a file that has grown so large is followed by another.
        metric_file_count_max: files that are kept.
        settle_s: whole seconds to wait before a second is written; 0 for one process.

    Raises:
        ValueError: names the setting and the rule.
    """

    app: str
    host: str = "127.0.0.1"
    port: int = PORT_DEFAULT
    allow: tuple[str, ...] = LOOPBACK
    token: str = field(default="", repr=False)
    host_names: tuple[str, ...] = ()
    dashboards: tuple[str, ...] = ()
    heartbeat_ip: str = ""
    heartbeat_interval_ms: int = 10_000
    heartbeat_delay_ms: int = 5_000
    metric_folder: Path | None = None
    metric_file_bytes_max: int = 50 * MEBIBYTE
    metric_file_count_max: int = 6
    settle_s: int = 0

    def __post_init__(self) -> None:
        if not self.app.strip() or len(self.app) > APP_LENGTH_MAX or not self.app.isprintable():
            raise ValueError(f"app must be 1 to {APP_LENGTH_MAX} printable characters")
        if "/" in self.app or "\\" in self.app:
            raise ValueError("app must not have slashes: it is part of file names")
        if not 0 <= self.port <= PORT_MAX:
            raise ValueError(f"port must be from 0 to {PORT_MAX}: {self.port}")
        if self.heartbeat_ip:
            try:
                ip_address(self.heartbeat_ip)
            except ValueError:
                # The dashboard refuses names, which once let anybody make it call any address.
                raise ValueError(
                    f"heartbeat_ip must be a literal address: {self.heartbeat_ip!r}"
                ) from None
        if self.heartbeat_interval_ms < 1 or self.heartbeat_delay_ms < 0:
            raise ValueError("heartbeat_interval_ms must be above 0, heartbeat_delay_ms at least 0")
        if self.metric_file_bytes_max < 1 or self.metric_file_count_max < 1 or self.settle_s < 0:
            raise ValueError("metric files need at least 1 byte and 1 file, settle_s at least 0")
