"""A web process that serves a small application from an inherited socket. Run by the tests.

Arguments: the socket's descriptor; the settings as JSON.
"""

import asyncio
import json
import os
import signal
import sys
from typing import Any

from seckill.web.server import ServerSettings, new_event_loop, serve

PID = str(os.getpid()).encode()


class SmallApp:
    def __init__(self) -> None:
        self.draining = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002  -- ASGI
        if scope["path"] == "/stuck":
            await asyncio.Event().wait()
        if scope["path"] == "/slow":
            await asyncio.sleep(0.4)
        if scope["path"] == "/crash":
            os._exit(9)
        headers = [(b"content-length", b"%d" % len(PID))]
        if self.draining:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": PID})

    def route(self, path: bytes) -> None:  # noqa: ARG002  -- everything is served by ASGI
        return None

    def refused(self, status: int) -> None:
        pass

    async def run(self) -> None:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if os.environ.get("FAIL_AFTER_S"):
            await asyncio.sleep(float(os.environ["FAIL_AFTER_S"]))
            raise RuntimeError("a part of the application failed")
        await asyncio.Event().wait()

    def drain(self) -> None:
        self.draining = True


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settings = ServerSettings(**json.loads(sys.argv[2]))
    await serve(SmallApp(), int(sys.argv[1]), settings, stop)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
