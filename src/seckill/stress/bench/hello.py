"""The server's own hello: the HTTP server of the product with a constant answer.

``python -m seckill.stress.bench.hello PORT PROCESSES``
"""

import asyncio
import multiprocessing
import signal
import socket
import sys

from seckill.web.connection import Request, Route
from seckill.web.ports import Receive, Scope, Send
from seckill.web.server import ServerSettings, new_event_loop, serve
from seckill.web.wire import render

__all__: list[str] = []

_BODY = b'{"code":1,"message":"hello"}'
_ANSWER = render(
    200, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))], _BODY
)


class _Hello:
    """Answers everything as the hot routes are answered: by a call."""

    def __init__(self) -> None:
        self._route = Route(
            request=Request, serve=self._serve, body_bytes_max=0, body_timeout_ms=1_000
        )

    def _serve(self, request: Request) -> None:
        request.connection.answer(request, _ANSWER)

    def route(self, path: bytes) -> Route:  # noqa: ARG002  -- the same for all
        return self._route

    def refused(self, status: int) -> None:
        """Nothing is counted."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        await asyncio.Event().wait()

    def drain(self) -> None:
        """Nothing is under way."""


def _serve(port: int) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(16_384)
        listener.setblocking(False)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_until_told(listener))


async def _until_told(listener: socket.socket) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await serve(_Hello(), listener, ServerSettings(drain_ms=0, shutdown_grace_ms=500), stop)


def main() -> None:
    """Serve until SIGTERM."""
    port, processes = int(sys.argv[1]), int(sys.argv[2])
    children = [
        multiprocessing.get_context("spawn").Process(target=_serve, args=(port,), daemon=True)
        for _ in range(processes)
    ]
    for child in children:
        child.start()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    try:
        for child in children:
            child.join()
    finally:
        for child in children:
            child.terminate()


if __name__ == "__main__":
    main()
