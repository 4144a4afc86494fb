"""Who may command.

The original lets everybody who reaches the port replace all rules. Here a request needs one of two
things: to come from an allowed address (by default this machine), or to present the token.

An address is not enough against a page in a browser on an allowed machine: it can make the browser
send a form to the port, or point a name of its own at it. Browsers say that they are browsers, so
such requests are refused by what they say; the dashboard and shell tools say nothing of the kind.
"""

from __future__ import annotations

import hmac
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LOOPBACK: Final = ("127.0.0.0/8", "::1")
"""The addresses of this machine for itself."""

TOKEN_HEADER: Final = "x-sentinel-token"  # noqa: S105  the name of a header
TOKEN_PARAMETER: Final = "token"  # noqa: S105  the name of a parameter
BEARER: Final = "bearer "

_OWN_SITE: Final = frozenset({"none", "same-origin"})


class Access:
    """Decides who may command.

    Args:
        allow: addresses and networks that need no token.
        token: lets in from anywhere; empty for none.
        host_names: under which the port may be addressed, besides addresses and ``localhost``.

    Raises:
        ValueError: something in ``allow`` is neither an address nor a network.
    """

    def __init__(
        self,
        *,
        allow: Iterable[str] = LOOPBACK,
        token: str = "",
        host_names: Iterable[str] = (),
    ) -> None:
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(one) for one in allow]
        self._token = token.encode()
        self._host_names = frozenset(name.lower() for name in host_names) | {"localhost"}

    def refusal(
        self, peer: str, headers: Mapping[str, str], parameters: Mapping[str, str]
    ) -> str | None:
        """Why a request may not command; None when it may.

        Args:
            peer: the address it comes from.
            headers: by lower-case name.
            parameters: of its URL. Those of its body are not looked at: who may not command is
                refused before its body is read.
        """
        if self._presents_token(headers, parameters):
            return None
        if not self.allows(peer):
            return "this address may not command, and no valid token was presented"
        if "origin" in headers or headers.get("sec-fetch-site", "none") not in _OWN_SITE:
            return "a page of another site may not command"
        if not self._addressed_rightly(headers.get("host", "")):
            return "the command port is not known under this name"
        return None

    def allows(self, address: str) -> bool:
        """Whether an address needs no token."""
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self._networks)

    def _presents_token(self, headers: Mapping[str, str], parameters: Mapping[str, str]) -> bool:
        if not self._token:
            return False
        given = headers.get(TOKEN_HEADER) or parameters.get(TOKEN_PARAMETER) or ""
        authorization = headers.get("authorization", "")
        if not given and authorization.lower().startswith(BEARER):
            given = authorization[len(BEARER) :].strip()
        return hmac.compare_digest(given.encode(errors="replace"), self._token)

    def _addressed_rightly(self, host: str) -> bool:
        if not host:
            # A tool that says no name was not led here by one.
            return True
        name = host.rpartition(":")[0] if _has_port(host) else host
        name = name.removeprefix("[").removesuffix("]").lower()
        if name in self._host_names:
            return True
        try:
            ip_address(name.partition("%")[0])
        except ValueError:
            return False
        return True


def _has_port(host: str) -> bool:
    """Whether the last colon of a Host header begins a port, rather than part of an address."""
    if host.startswith("["):
        return "]:" in host
    return host.count(":") == 1
