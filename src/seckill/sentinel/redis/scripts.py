"""The Lua scripts of this package: text, digest, and what to do when a server has forgotten one."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import NoScriptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

_PACKAGE: Final = files("seckill.sentinel.redis").joinpath("lua")


class Script:
    """One script. All of them may be run twice, so one that a server lost is simply sent again.

    Args:
        name: of its file, without ``.lua``.
    """

    def __init__(self, name: str) -> None:
        self.text = _PACKAGE.joinpath(f"{name}.lua").read_text(encoding="utf-8")
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def run(self, client: Redis, keys: Sequence[str], *arguments: str | int) -> Any:
        """Run it, and return its reply.

        Raises:
            RedisError: whatever the client raises.
        """
        rest = (len(keys), *keys, *arguments)
        try:
            return client.execute_command("EVALSHA", self.sha, *rest)  # type: ignore[no-untyped-call]
        except NoScriptError:
            return client.execute_command("EVAL", self.text, *rest)  # type: ignore[no-untyped-call]

    async def run_async(
        self, client: AsyncRedis, keys: Sequence[str], *arguments: str | int
    ) -> Any:
        """The same with a client for asyncio."""
        rest = (len(keys), *keys, *arguments)
        try:
            return await client.execute_command("EVALSHA", self.sha, *rest)  # type: ignore[no-untyped-call]
        except NoScriptError:
            return await client.execute_command("EVAL", self.text, *rest)  # type: ignore[no-untyped-call]
