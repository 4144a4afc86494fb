"""The dead-letter topic: what could not be read or written, with its reason, origin and raw bytes.

A dead letter is a message with the key, value and headers of the original; ours are beside them
under names that begin with ``seckill-``. Nothing is ever removed from a topic by hand, so what was
done about a letter is a message of its own, a note: it names the letter and says what was done.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Message

from seckill.pipeline.dead_letters import DeadLetter
from seckill.pipeline.errors import ChannelUnavailable, LetterGone
from seckill.pipeline.kafka.messages import OrderMessage
from seckill.pipeline.kafka.options import KafkaOptions
from seckill.pipeline.kafka.producer import KafkaProducer
from seckill.pipeline.kafka.reading import read_range

__all__ = ["DeadMessage", "DeadTopic", "TopicLetters"]

_PREFIX: Final = "seckill-"
_REASON: Final = "seckill-reason"
_ORIGIN: Final = "seckill-origin"
_AT: Final = "seckill-at-ms"
_EMPTY: Final = "seckill-value"
_SETTLES: Final = "seckill-settles"
_HOW: Final = "seckill-how"
_REASON_CHARS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """One dead letter.

    Attributes:
        letter: its name: partition and offset in the dead-letter topic.
        origin: topic, partition and offset it came from.
        at_ms: when it was published there.
        value: the raw bytes; None for a message without a value.
    """

    letter: str
    reason: str
    origin: str
    at_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class DeadTopic:
    """Writes and reads dead letters.

    Args:
        producer: carries them; a letter is there once all copies have it.
    """

    def __init__(self, options: KafkaOptions, producer: KafkaProducer) -> None:
        self._options = options
        self._producer = producer

    async def put(self, topic: str, poison: Sequence[tuple[Message, str]]) -> None:
        """Write dead letters. Raises ChannelUnavailable when not all of them were taken."""
        await self._publish(
            self._options.dead_topic,
            [_letter_of(topic, message, reason) for message, reason in poison],
            "writing dead letters",
        )

    async def unsettled(self) -> list[DeadMessage]:
        """Every letter about which nothing was done yet, oldest first.

        Raises:
            ChannelUnavailable: Kafka does not answer.
        """
        return await asyncio.to_thread(self._read)

    async def replay(self, letter: DeadMessage) -> None:
        """Send a letter the way it came once more. The ledger knows it if it was written."""
        original = OrderMessage(letter.key, letter.value, letter.headers)
        await self._publish(self._options.topic, [original], "replaying a dead letter")
        await self._note(letter, "replayed")

    async def discard(self, letter: DeadMessage) -> None:
        """Leave a letter be, for good."""
        await self._note(letter, "discarded")

    async def _note(self, letter: DeadMessage, how: str) -> None:
        headers = ((_SETTLES, letter.letter.encode()), (_HOW, how.encode()))
        await self._publish(
            self._options.dead_topic, [OrderMessage(letter.key, None, headers)], "settling a letter"
        )

    async def _publish(self, topic: str, messages: Sequence[OrderMessage], doing: str) -> None:
        failed = [error for error in await self._producer.publish(topic, messages) if error]
        if failed:
            raise ChannelUnavailable(f"{doing}: {failed[0]}")

    def _read(self) -> list[DeadMessage]:
        letters: dict[str, DeadMessage] = {}
        settled: set[str] = set()
        for message in read_range(self._options, self._options.dead_topic):
            headers = _headers(message)
            if _SETTLES in headers:
                settled.add(headers[_SETTLES].decode(errors="replace"))
            else:
                letter = _read_letter(message, headers)
                letters[letter.letter] = letter
        return [letter for name, letter in letters.items() if name not in settled]


class TopicLetters:
    """Implements `pipeline.dead_letters.Shelf` for the dead-letter topic."""

    prefix = "kafka"

    def __init__(self, dead: DeadTopic) -> None:
        self._dead = dead

    async def letters(self) -> list[DeadLetter]:
        """See Shelf."""
        return [_as_letter(message) for message in await self._dead.unsettled()]

    async def replay(self, letter: DeadLetter) -> None:
        """See Shelf."""
        await self._dead.replay(await self._find(letter))

    async def discard(self, letter: DeadLetter) -> None:
        """See Shelf."""
        await self._dead.discard(await self._find(letter))

    async def _find(self, letter: DeadLetter) -> DeadMessage:
        for message in await self._dead.unsettled():
            if _name(message) == letter.name:
                return message
        raise LetterGone(letter.name, "it was settled meanwhile")


def _name(message: DeadMessage) -> str:
    return f"{TopicLetters.prefix}:{message.letter}"


def _as_letter(message: DeadMessage) -> DeadLetter:
    return DeadLetter(
        name=_name(message),
        origin=message.origin,
        reason=message.reason,
        at_ms=message.at_ms,
        key=message.key or b"",
        raw=message.value,
    )


def _letter_of(topic: str, message: Message, reason: str) -> OrderMessage:
    origin = f"{topic}/{message.partition()}/{message.offset()}"
    value, key = message.value(), message.key()
    headers = [*_raw_headers(message)]
    headers += [
        (_REASON, reason[:_REASON_CHARS_MAX].encode(errors="backslashreplace")),
        (_ORIGIN, origin.encode()),
        (_AT, str(message.timestamp()[1]).encode()),
        (_EMPTY, b"none" if value is None else b"bytes"),
    ]
    return OrderMessage(_bytes(key), _bytes(value), tuple(headers))


def _raw_headers(message: Message) -> list[tuple[str, bytes]]:
    found: Any = message.headers() or []
    return [(name, value or b"") for name, value in found if not name.startswith(_PREFIX)]


def _headers(message: Message) -> dict[str, bytes]:
    found: Any = message.headers() or []
    return {name: value or b"" for name, value in found}


def _read_letter(message: Message, headers: dict[str, bytes]) -> DeadMessage:
    at = headers.get(_AT, b"0")
    value = _bytes(message.value())
    if headers.get(_EMPTY) == b"bytes" and value is None:
        value = b""
    return DeadMessage(
        letter=f"{message.partition()}-{message.offset()}",
        reason=headers.get(_REASON, b"").decode(errors="replace"),
        origin=headers.get(_ORIGIN, b"?").decode(errors="replace"),
        at_ms=int(at) if at.isdigit() else 0,
        key=_bytes(message.key()),
        value=value,
        headers=tuple(_raw_headers(message)),
    )


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
