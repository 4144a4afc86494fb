"""The dead letters of the service, joined to the stores."""

import base64
from typing import Any, Literal

from seckill.ledger.actions import ActionLog
from seckill.pipeline.dead_letters import DeadLetter, OutboxLetters, Shelf, Shelves
from seckill.runtime.bootstrap import Stores

__all__ = ["LetterDesk", "letter_row", "shelves_of"]

Row = dict[str, Any]


async def shelves_of(stores: Stores) -> Shelves:
    """All shelves there are. Raises LedgerUnavailable when the ledger does not answer."""
    buckets = [row.bucket_id for row in await stores.ledger.epochs.current_epochs()]
    shelves: list[Shelf] = [OutboxLetters(stores.redis, stores.keys, lambda: buckets)]
    if stores.kafka is not None:
        from seckill.pipeline.kafka.dead_topic import TopicLetters  # noqa: PLC0415

        shelves.append(TopicLetters(stores.kafka.dead))
    return Shelves(shelves)


def letter_row(letter: DeadLetter, *, content: bool = True) -> Row:
    """A letter as programs read it."""
    row: Row = {
        "name": letter.name,
        "origin": letter.origin,
        "reason": letter.reason,
        "at_ms": letter.at_ms,
        "key": letter.key.decode(errors="backslashreplace"),
        "bytes": None if letter.raw is None else len(letter.raw),
    }
    if content:
        raw = letter.raw
        row["content_base64"] = None if raw is None else base64.b64encode(raw).decode()
    return row


class LetterDesk:
    """Dead letters by HTTP. Raises ChannelUnavailable and LedgerUnavailable.

    Args:
        stores: of the service.
        actions: the action log.
    """

    def __init__(self, stores: Stores, actions: ActionLog) -> None:
        self._stores = stores
        self._actions = actions

    async def page(self, letters_max: int, *, after: str | None) -> list[Row]:
        """Letters without their content, by shelf, oldest first; none after an unknown one."""
        letters = await (await shelves_of(self._stores)).letters()
        if after is not None:
            names = [letter.name for letter in letters]
            letters = letters[names.index(after) + 1 :] if after in names else []
        return [letter_row(letter, content=False) for letter in letters[:letters_max]]

    async def show(self, name: str) -> Row:
        """One letter with its content. Raises LetterGone."""
        return letter_row(await (await shelves_of(self._stores)).find(name))

    async def settle(
        self, name: str, how: Literal["replay", "discard"], *, actor: str, reason: str
    ) -> Row:
        """Send a letter once more the way it came, or do away with it for good.

        It is noted before it is done: what is cut in between may be asked for again.

        Raises:
            LetterGone: it is not there any more, or there is nothing to go back to.
        """
        shelves = await shelves_of(self._stores)
        letter = await shelves.find(name)
        await self._actions.note(
            f"{how}_dead_letter",
            actor=actor,
            reason=reason,
            name=name,
            letter=letter.reason,
        )
        await (shelves.replay(name) if how == "replay" else shelves.discard(name))
        return letter_row(letter, content=False)
