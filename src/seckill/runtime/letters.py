"""The dead letters of the service, joined to the stores."""

from seckill.pipeline.dead_letters import OutboxLetters, Shelf, Shelves
from seckill.runtime.bootstrap import Stores

__all__ = ["shelves_of"]


async def shelves_of(stores: Stores) -> Shelves:
    """All shelves there are. Raises LedgerUnavailable when the ledger does not answer."""
    buckets = [row.bucket_id for row in await stores.ledger.epochs.current_epochs()]
    shelves: list[Shelf] = [OutboxLetters(stores.redis, stores.keys, lambda: buckets)]
    if stores.kafka is not None:
        from seckill.pipeline.kafka.dead_topic import TopicLetters  # noqa: PLC0415

        shelves.append(TopicLetters(stores.kafka.dead))
    return Shelves(shelves)
