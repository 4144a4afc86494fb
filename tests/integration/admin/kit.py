"""The operators' side over real HTTP, on a real Redis and a real ledger, both of the test's own.

The buyers' side of the same process is made of doubles: what is asked here never goes there.
"""

import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jsonschema_rs

from integration.web.http import Client, Reply, Service, running
from seckill.admission.keys import Keys
from seckill.domain.operators import Role
from seckill.runtime.admin_parts import admin_parts
from seckill.runtime.bootstrap import Stores, open_stores
from seckill.runtime.settings import load_settings
from unit.web.doubles import PATIENT, World

__all__ = ["WHY", "AdminService", "open_admin"]

WHY = {"reason": "the test wants it"}
_names = itertools.count(1)


@dataclass
class AdminService:
    """A web process with operators."""

    service: Service
    stores: Stores
    tokens: dict[Role | None, str]
    described: dict[str, Any] = field(default_factory=dict)
    """Its OpenAPI document; an answer that it does not describe fails the test."""

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        role: Role | None = Role.ADMIN,
        token: str | None = None,
        raw: bytes | None = None,
        **headers: str,
    ) -> Reply:
        """Ask once, on a connection of its own, and hold the answer against the document."""
        given: dict[str, str | bytes] = {k.replace("_", "-"): v for k, v in headers.items()}
        shown = token if token is not None else self.tokens[role]
        if shown:
            given["authorization"] = f"Bearer {shown}"
        sent = raw if raw is not None else None if body is None else json.dumps(body).encode()
        if sent is not None:
            given.setdefault("content-type", "application/json")
        reply = await self.service.ask(method, f"/admin/api{path}", given, sent)
        self._check(method, f"/admin/api{path}".partition("?")[0], reply)
        return reply

    async def made(self, method: str, path: str, body: object = None, **more: Any) -> Any:
        """Ask for what must be done."""
        reply = await self.ask(method, path, body, **more)
        assert reply.status in {200, 201}, (reply.status, reply.body)
        return reply.json

    def _check(self, method: str, path: str, reply: Reply) -> None:
        operation = self._operation(method.lower(), path)
        if operation is None or reply.status in {404, 405}:
            return
        described = operation["responses"].get(str(reply.status))
        assert described, f"{method} {path} answers {reply.status} and does not say so"
        (content,) = described["content"].values()
        schema = {**content["schema"], "components": self.described["components"]}
        errors = list(jsonschema_rs.validator_for(schema).iter_errors(reply.json))
        assert not errors, (method, path, reply.json, errors[0].message)

    def _operation(self, method: str, path: str) -> dict[str, Any] | None:
        parts = path.split("/")
        for template, operations in self.described["paths"].items():
            wanted = template.split("/")
            if len(wanted) == len(parts) and all(
                one.startswith("{") or one == part for one, part in zip(wanted, parts, strict=True)
            ):
                found: dict[str, Any] | None = operations.get(method)
                if found is not None:
                    return found
        return None

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[Client]:
        async with self.service.connect() as client:
            yield client


@contextlib.asynccontextmanager
async def open_admin(
    redis_url: str, keys: Keys, ledger_url: str, folder: Path, world: World | None = None
) -> AsyncIterator[AdminService]:
    loaded = load_settings(
        {
            "data_dir": folder / "data",
            "redis_url": redis_url,
            "database_url": ledger_url,
            "key_prefix": keys.prefix,
            "durability": "memory",
            "redis_timeout_ms": 30_000,
        }
    )
    loaded.settings.data.create()
    if world is None:
        world = World()
        # What is tested here is not how busy the machine is.
        world.parts = replace(world.parts, limits=replace(PATIENT, admin_failure_pause_ms=600_000))
    async with contextlib.AsyncExitStack() as stack:
        stores = await stack.enter_async_context(open_stores(loaded.settings))
        await stores.fence.keep()
        tokens: dict[Role | None, str] = {None: ""}
        for role in (Role.ADMIN, Role.OPERATOR, Role.VIEWER):
            _, tokens[role] = await stores.ledger.admins.make_token(
                role.value, role, add_user=True, actor="test"
            )
        parts = replace(world.parts, admin=admin_parts(stores), clock=stores.clock)
        world.parts = parts
        service = await stack.enter_async_context(running(world))
        described = (await service.ask("GET", "/openapi.json")).json
        yield AdminService(service, stores, tokens, described)


def goods() -> str:
    """Goods that no other test has."""
    return f"g{next(_names)}"


def pages(found: list[Any], size: int) -> Iterator[list[Any]]:
    """What pages of a size must hold."""
    for at in range(0, len(found), size):
        yield found[at : at + size]
