"""Who the buyer is while developing: whoever the request says."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from seckill.domain.errors import InvalidValue
from seckill.domain.ids import UserId, check_user_id
from seckill.web.problems import Malformed, RuleBroken, Unauthenticated
from seckill.web.requests import query_parameter

__all__ = ["DevAuth"]

_PLAIN_QUERY: Final = re.compile(rb"userId=([A-Za-z0-9._~-]{1,64})")
_DEV_CHALLENGE: Final = 'Dev realm="seckill"'


class DevAuth:
    """Believes whatever name the request gives. For one's own machine only.

    The name comes in the header ``X-User-Id`` or in the query parameter ``userId``.
    """

    security_schemes: Mapping[str, Mapping[str, str]] = MappingProxyType(
        {
            "devHeader": {
                "type": "apiKey",
                "in": "header",
                "name": "X-User-Id",
                "description": "the user id, believed as it is",
            },
            "devQuery": {
                "type": "apiKey",
                "in": "query",
                "name": "userId",
                "description": "the same in the query, as in the article",
            },
        }
    )

    def identify(self, headers: Mapping[bytes, bytes], query_string: bytes) -> UserId:
        """The user that the request names.

        Raises:
            Unauthenticated: it names nobody.
            Malformed: it names two, or the bytes are not UTF-8.
            RuleBroken: the name is not a user id.
        """
        raw = headers.get(b"x-user-id")
        if raw is None and (plain := _PLAIN_QUERY.fullmatch(query_string)):
            return UserId(plain[1].decode("ascii"))  # the usual case, which breaks no rule
        field, name = "userId", query_parameter(query_string, "userId") if query_string else None
        if raw is not None:
            field = "X-User-Id"
            try:
                header_name = raw.decode("utf-8", "strict")
            except UnicodeDecodeError:
                raise Malformed(field, "must be UTF-8") from None
            if name is not None and name != header_name:
                raise Malformed(field, "must name the same user as userId in the query")
            name = header_name
        if name is None:
            raise Unauthenticated(
                "Say who you are: header X-User-Id, or query parameter userId.", _DEV_CHALLENGE
            )
        try:
            return check_user_id(name, field)
        except InvalidValue as invalid:
            raise RuleBroken(invalid.field, invalid.rule) from None

    async def run(self) -> None:
        """Nothing needs to be kept fresh."""
