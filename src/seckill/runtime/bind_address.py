"""An address to serve on, as a person writes it."""

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, Self

__all__ = ["BindAddress"]

_DNS_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")


@dataclass(frozen=True, slots=True)
class BindAddress:
    """An address to serve on.

    Attributes:
        host: IP address without brackets, or a name.
        port: 0 means any free one.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``host:port``; an IPv6 address stands in brackets.

        Raises:
            ValueError: with the rule that is broken.
        """
        host, colon, port = text.strip().rpartition(":")
        if not colon or not host or not (port.isascii() and port.isdigit()):
            raise ValueError("must be host:port, such as 127.0.0.1:8000 or [::1]:8000")
        port_max = 65_535
        if int(port) > port_max:
            raise ValueError(f"the port must be between 0 and {port_max}")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            if ":" not in host:
                raise ValueError("only an IPv6 address stands in brackets")
        elif ":" in host:
            raise ValueError("an IPv6 address must stand in brackets, such as [::1]:8000")
        try:
            ip_address(host)
        except ValueError:
            # Digits and dots alone are a mistyped address, which a resolver may read in odd ways.
            if ":" in host or not _DNS_NAME.fullmatch(host) or not host.strip("0123456789."):
                raise ValueError("the host must be an IP address or a host name") from None
        return cls(host, int(port))

    @property
    def loopback(self) -> bool:
        """Only programs on this machine can reach it. A name other than localhost never counts."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
