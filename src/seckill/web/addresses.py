"""From which address a request came, as far as it can be believed.

Anybody can write anything into ``X-Forwarded-For``. Only the proxies that the operator named are
believed: each appends the address that it saw, so they are counted from the right, beginning with
the peer of the connection itself. What stands further left is the client's own word.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

__all__ = ["HEADERS", "IPV6_PREFIX_BITS_DEFAULT", "PROXIES_MAX", "Addresses"]

HEADERS: Final = ("x-forwarded-for", "forwarded")
IPV6_PREFIX_BITS_DEFAULT: Final = 64
"""What one household or one server gets: it can send from any address of it."""

PROXIES_MAX: Final = 16
_IPV6_BITS: Final = 128
_TEXT_MAX: Final = 64
"""The longest writing of an address, a port and a zone included; longer is no address."""
_NAMES_MAX: Final = 16_384
"""Spellings that are remembered; when there are more, all are forgotten."""
_UNKNOWN: Final = "unknown"


class Addresses:
    """Names the address of a request by one text: two requests of one sender have the same.

    Args:
        trusted_proxies: how many proxies stand in front, each of which appends the address that it
            saw to the header; 0: none, and the header is not looked at.
        header: which header they write: ``x-forwarded-for``, or ``forwarded`` (RFC 7239).
        ipv6_prefix_bits: so many leading bits of an IPv6 address name its sender; 1 to 128.
    """

    def __init__(
        self,
        trusted_proxies: int = 0,
        *,
        header: str = HEADERS[0],
        ipv6_prefix_bits: int = IPV6_PREFIX_BITS_DEFAULT,
    ) -> None:
        assert header in HEADERS
        assert 0 <= trusted_proxies <= PROXIES_MAX
        assert 1 <= ipv6_prefix_bits <= _IPV6_BITS
        self._trusted_proxies = trusted_proxies
        self._header = header.encode()
        self._prefix_bits = ipv6_prefix_bits
        self._names: dict[str | bytes, str | None] = {}

    def of(self, peer: str | None, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """The address as one text. Never fails: without any that can be read it is ``unknown``.

        Args:
            peer: the other end of the connection, where it is known.
            headers: of the request.
        """
        name = _UNKNOWN if peer is None else self._name(peer) or _UNKNOWN
        return self._forwarded(headers, name) if self._trusted_proxies else name

    def _forwarded(self, headers: Sequence[tuple[bytes, bytes]], peer: str) -> str:
        """What the outermost of the trusted proxies saw.

        A proxy that wrote nothing, or what is no address, ends the search: further left is only
        what the client wants us to believe, so the last address that was believed counts.
        """
        believed = peer
        left = self._trusted_proxies
        # Several headers of one name are one list, in their order.
        for name, value in reversed(headers):
            if name != self._header:
                continue
            # Split from the right and no further than needed, whatever the length of the rest.
            parts = value.rsplit(b",", left)
            if len(parts) > left:
                del parts[0]
            for part in reversed(parts):
                found = self._name(part)
                if found is None:
                    return believed
                believed = found
                left -= 1
            if not left:
                break
        return believed

    def _name(self, text: str | bytes) -> str | None:
        """The name of an address in any spelling; None when it is none."""
        if len(text) > _TEXT_MAX:
            return None
        try:
            return self._names[text]
        except KeyError:
            pass
        if len(self._names) >= _NAMES_MAX:
            self._names.clear()
        plain = text if isinstance(text, str) else text.decode("latin-1")
        found = self._names[text] = self._read(plain)
        return found

    def _read(self, text: str) -> str | None:
        text = text.strip()
        if self._header == b"forwarded":
            text = _for_of(text) or text
        try:
            address = ip_address(_bare(text))
        except ValueError:
            return None
        if isinstance(address, IPv6Address):
            # How an IPv4 client is written on a socket that takes both.
            if address.ipv4_mapped is not None:
                return str(address.ipv4_mapped)
            network = IPv6Network((int(address), self._prefix_bits), strict=False)
            return str(network) if self._prefix_bits < _IPV6_BITS else str(network.network_address)
        assert isinstance(address, IPv4Address)
        return str(address)


def _bare(text: str) -> str:
    """An address without brackets, port and zone."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    return text.partition("%")[0]


def _for_of(element: str) -> str:
    """The node that an element of ``Forwarded`` is for; empty when it says none."""
    for pair in element.split(";"):
        name, _, value = pair.strip().partition("=")
        if name.lower() == "for":
            return value.strip().strip('"')
    return ""
