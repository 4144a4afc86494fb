"""An ASGI application behind the engine, whatever framework it is written in.

The resource of a request is what ``resource`` makes of it, and should be the *route*, not the path:
a path with an id in it would make a resource of every id. ``RouteNames`` does that from templates.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from seckill.sentinel.errors import BlockException
from seckill.sentinel.words import EntryType, ResourceType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping

    from seckill.sentinel.engine import Sentinel

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Application = Callable[[Scope, Receive, Send], Awaitable[None]]

CONTEXT_NAME: Final = "sentinel_asgi_context"
BLOCK_STATUS: Final = 429
BLOCK_BODY: Final = b"Blocked by Sentinel (flow limiting)"
RETRY_AFTER_S: Final = 1
SERVER_ERROR_MIN: Final = 500

_PLACEHOLDER: Final = re.compile(r"\\\{[^{}]*\\\}")


class ServerErrorStatus(Exception):  # noqa: N818  a status, not something that is ever raised
    """The application answered with a status of 500 or more. Counted as a failure, never raised."""


class RouteNames:
    """Names requests by the first template that fits: ``GET:/orders/{id}``; others have no name.

    Args:
        templates: paths with ``{placeholders}``, each standing for one part between slashes.
    """

    def __init__(self, templates: Iterable[str]) -> None:
        self._routes = [
            (re.compile(_PLACEHOLDER.sub("[^/]+", re.escape(template))), template)
            for template in templates
        ]

    def __call__(self, scope: Scope) -> str | None:
        """The name of a request; None if no template fits."""
        path = scope["path"]
        for pattern, template in self._routes:
            if pattern.fullmatch(path):
                return f"{scope['method']}:{template}"
        return None


class SentinelMiddleware:
    """Puts an entry of type ``IN`` around every HTTP request that has a resource.

    Args:
        application: what is to be protected.
        sentinel: the engine.
        resource: gives the resource of a request; None lets it pass without an entry.
        origin: gives the caller's name; default none.
        arguments: gives the values for hot-parameter rules; default none.
        on_block: answers a refused request; default status 429 with the original's text.
        context_name: the entrance in the call tree.
        count_server_errors: whether an answer of 500 or more counts as a failure.
    """

    def __init__(
        self,
        application: Application,
        sentinel: Sentinel,
        resource: Callable[[Scope], str | None],
        *,
        origin: Callable[[Scope], str] | None = None,
        arguments: Callable[[Scope], tuple[object, ...]] | None = None,
        on_block: Callable[[BlockException, Scope, Receive, Send], Awaitable[None]] | None = None,
        context_name: str = CONTEXT_NAME,
        count_server_errors: bool = True,
    ) -> None:
        self._application = application
        self._sentinel = sentinel
        self._resource = resource
        self._origin = origin
        self._arguments = arguments
        self._on_block = on_block or answer_block
        self._context_name = context_name
        self._count_server_errors = count_server_errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        name = self._resource(scope) if scope["type"] == "http" else None
        if name is None:
            await self._application(scope, receive, send)
            return
        origin = "" if self._origin is None else self._origin(scope)
        arguments = () if self._arguments is None else self._arguments(scope)
        with self._sentinel.context(self._context_name, origin):
            entry = await self._sentinel.try_entry_async(
                name, *arguments, entry_type=EntryType.IN, resource_type=ResourceType.WEB
            )
            if isinstance(entry, BlockException):
                await self._on_block(entry, scope, receive, send)
                return

            async def watched_send(message: Message) -> None:
                if (
                    self._count_server_errors
                    and message["type"] == "http.response.start"
                    and message["status"] >= SERVER_ERROR_MIN
                ):
                    entry.set_error(ServerErrorStatus(message["status"]))
                await send(message)

            try:
                await self._application(scope, receive, watched_send)
            except BaseException as error:
                entry.set_error(error)
                raise
            finally:
                entry.exit()


async def answer_block(
    _block: BlockException, _scope: Scope, _receive: Receive, send: Send
) -> None:
    """Say that the request was refused, in the original's words."""
    await send(
        {
            "type": "http.response.start",
            "status": BLOCK_STATUS,
            "headers": [
                (b"content-type", b"text/plain; charset=utf-8"),
                (b"content-length", str(len(BLOCK_BODY)).encode()),
                (b"retry-after", str(RETRY_AFTER_S).encode()),
            ],
        }
    )
    await send({"type": "http.response.body", "body": BLOCK_BODY})
