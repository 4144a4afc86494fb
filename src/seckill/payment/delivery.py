"""Carries the sandbox's news to the webhook: over HTTP, signed, again until it is taken."""

import asyncio
import time
import urllib.error
import urllib.request
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from typing import Final

import structlog

from seckill.payment.errors import PaymentError
from seckill.payment.sandbox import Message, Sandbox
from seckill.payment.webhook import HEADERS, sign

__all__ = ["deliver", "deliver_for_ever"]

_log = structlog.get_logger(__name__)

_TIMEOUT_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.5


async def deliver_for_ever(sandbox: Sandbox, webhook_url: str) -> None:
    """Deliver what is due, again and again, until cancelled."""
    while True:
        try:
            await deliver(sandbox, webhook_url)
        except PaymentError as error:
            _log.warning("the sandbox cannot deliver its news", error=str(error))
        await asyncio.sleep(_LOOK_EVERY_S)


async def deliver(sandbox: Sandbox, webhook_url: str) -> int:
    """Deliver what is due now; returns how many messages were taken."""
    taken = 0
    for message in await sandbox.due():
        answer = await asyncio.to_thread(partial(_post, sandbox.secret, message, webhook_url))
        ok = answer.startswith("2")
        # One that was read and refused would be refused for ever.
        final = ok or answer.startswith("422")
        await sandbox.delivered(message, answer, taken=final)
        taken += ok
    return taken


def _post(secret: str, message: Message, webhook_url: str) -> str:
    at_s = int(time.time())
    values = (message.event_id, str(at_s), sign(secret, message.event_id, at_s, message.body))
    request = urllib.request.Request(  # noqa: S310  -- an address of our own, http on loopback
        webhook_url,
        data=message.body,
        headers={**dict(zip(HEADERS, values, strict=True)), "content-type": "application/json"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310  -- as above
            return str(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {HTTPStatus(error.code).phrase}"
    except (OSError, HTTPException) as error:
        return f"no answer: {error}"
