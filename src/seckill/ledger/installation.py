"""Who these books are, and the key that makes reservation ids: drawn once, then read."""

import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from seckill.admission.reservation_ids import KEY_BYTES
from seckill.ledger import statements
from seckill.ledger.engine import Database
from seckill.ledger.tables import installation

__all__ = ["Installation", "read_installation"]


@dataclass(frozen=True, slots=True)
class Installation:
    """What was drawn once for these books.

    Attributes:
        installation_id: a UUID; Redis and the ledger of one installation carry the same.
        reservation_id_key: the key of `ReservationIds`. Losing or changing it makes every
            reservation id ever given out unreadable.
    """

    installation_id: str
    reservation_id_key: bytes = field(repr=False)


async def read_installation(
    database: Database, random_bytes: Callable[[int], bytes] = secrets.token_bytes
) -> Installation:
    """Read who these books are; the first process that asks draws it, and all get the same.

    Raises:
        LedgerUnavailable: call again.
    """
    found = await database.read("read the installation", _read)
    if found is None:
        drawn = {
            "installation_id": str(uuid.UUID(bytes=random_bytes(16), version=4)),
            "reservation_id_key": random_bytes(KEY_BYTES).hex(),
        }

        async def draw(connection: AsyncConnection) -> Installation | None:
            await connection.execute(
                statements.INSERTS[connection.dialect.name].installation,
                [{"name": name, "value": value} for name, value in drawn.items()],
            )
            return await _read(connection)

        found = await database.write("draw the installation", draw)
        assert found is not None, "what was inserted in this transaction can be read in it"
    return found


async def _read(connection: AsyncConnection) -> Installation | None:
    rows = await connection.execute(select(installation.c.name, installation.c.value))
    values = {row.name: row.value for row in rows}
    try:
        return Installation(values["installation_id"], bytes.fromhex(values["reservation_id_key"]))
    except KeyError:
        return None
