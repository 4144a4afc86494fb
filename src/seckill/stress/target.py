"""Where the clicks go, and on whose behalf. Only this machine, unless it is plainly allowed."""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlsplit

from seckill.domain.errors import InvalidValue
from seckill.domain.ids import check_goods_id

__all__ = ["Endpoint", "HeadersFor", "Target", "bearer_headers", "dev_headers", "resolve"]

HeadersFor = Callable[[str], Mapping[str, str]]
"""User id to the request headers that say who the buyer is. Called once per buyer, before t0."""

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADERS_BYTES_MAX: Final = 8_192


def dev_headers(user_id: str) -> Mapping[str, str]:
    """The headers of ``auth = dev``."""
    return {"X-User-Id": user_id}


def bearer_headers(token_for: Callable[[str], str]) -> HeadersFor:
    """The headers of ``auth = jwt``: ``token_for`` gives the token of a user id."""

    def headers_for(user_id: str) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {token_for(user_id)}"}

    return headers_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The service under load and the goods that everybody wants.

    Attributes:
        url: ``http://host:port`` of the service, without a path.
        goods_id: the goods.
        headers_for: who the buyer is, as headers.
        allow_remote: load another machine. Only for one that is yours.

    Raises:
        InvalidValue: naming the field and the rule.
    """

    url: str = "http://127.0.0.1:8000"
    goods_id: str = "1"
    headers_for: HeadersFor = field(default=dev_headers, repr=False)
    allow_remote: bool = False

    def __post_init__(self) -> None:
        check_goods_id(self.goods_id)
        _split(self.url)

    @property
    def authority(self) -> str:
        """Host and port as they stand in the Host header."""
        host, port = _split(self.url)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def purchase_head(self, user_id: str) -> bytes:
        """The unchanging part of a buyer's purchase request: request line and headers so far."""
        return f"POST /seckill/{quote(self.goods_id, safe='')}".encode() + self._tail(user_id)

    def order_request(self, user_id: str, reservation_id: str) -> bytes:
        """A whole request for the state of one order."""
        path = f"GET /orders/{quote(reservation_id, safe='')}".encode()
        return path + self._tail(user_id) + b"\r\n"

    def _tail(self, user_id: str) -> bytes:
        lines = [f" HTTP/1.1\r\nHost: {self.authority}\r\n"]
        for name, value in self.headers_for(user_id).items():
            if not _HEADER_NAME.fullmatch(name) or not value.isprintable():
                raise InvalidValue("headers_for", f"gave a header that HTTP forbids: {name!r}")
            lines.append(f"{name}: {value}\r\n")
        tail = "".join(lines).encode()
        if len(tail) > _HEADERS_BYTES_MAX:
            raise InvalidValue("headers_for", f"gave more than {_HEADERS_BYTES_MAX} bytes")
        return tail


def _split(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InvalidValue("url", "must read like http://127.0.0.1:8000") from None
    if parts.scheme != "http" or not host:
        raise InvalidValue("url", "must read like http://127.0.0.1:8000 (TLS is not spoken here)")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or parts.username:
        raise InvalidValue("url", "must end after the port: no user, path, query or fragment")
    return host, 80 if port is None else port


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A resolved target.

    Attributes:
        family: ``AF_INET`` or ``AF_INET6``.
        host: the numeric address.
        port: the port.
        loopback: whether the address is on this machine.
    """

    family: socket.AddressFamily
    host: str
    port: int
    loopback: bool


async def resolve(target: Target) -> Endpoint:
    """Look the host up once, so that no name service is asked during the rush.

    Raises:
        InvalidValue: the name is unknown, or leads to another machine without ``allow_remote``.
    """
    host, port = _split(target.url)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidValue("url", f"the host {host} is not known: {error}") from None
    endpoints = [
        Endpoint(family, str(address[0]), port, ipaddress.ip_address(address[0]).is_loopback)
        for family, _, _, _, address in found
        if family in {socket.AF_INET, socket.AF_INET6}
    ]
    # A name that leads both here and elsewhere is elsewhere: one connection is enough to do harm.
    if not target.allow_remote and not all(endpoint.loopback for endpoint in endpoints):
        raise InvalidValue(
            "url", f"{host} is another machine: only loopback is loaded without allow_remote"
        )
    # IPv4 first: the service listens there by default.
    return min(endpoints, key=lambda endpoint: endpoint.family != socket.AF_INET)
