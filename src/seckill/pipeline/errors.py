"""What can go wrong on the way to the ledger.

::

    SeckillError
    └── PipelineError
        ├── LedgerAway           the ledger cannot write now; retryable, nothing was written
        ├── EventRefused         the ledger can never write this event; goes to the dead letters
        ├── ExpiryFailed         the ledger refuses to expire one of some orders; it is set aside
        ├── ChannelUnavailable   the carrier cannot be reached now; retryable, nothing is lost
        ├── LetterGone           a dead letter that is not there any more, or cannot go back
        ├── TopicUnfit           a topic that is there would lose messages; an operator must act
        └── Unreadable           a message that is no bucket event; goes to the dead letters
"""

from seckill.domain.errors import SeckillError

__all__ = [
    "ChannelUnavailable",
    "EventRefused",
    "ExpiryFailed",
    "LedgerAway",
    "LetterGone",
    "PipelineError",
    "TopicUnfit",
    "Unreadable",
]


class PipelineError(SeckillError):
    """Anything that the pipeline raises."""


class LedgerAway(PipelineError):  # noqa: N818  -- the field's word for it
    """The ledger cannot write now. Nothing was written; call again with the same events."""


class EventRefused(PipelineError):  # noqa: N818  -- the field's word for it
    """The ledger can never write an event: of an unknown sale, say. The text names the event."""


class ExpiryFailed(PipelineError):  # noqa: N818  -- says what happened
    """The ledger refuses to expire one of some orders. Nothing was changed for any of them."""


class ChannelUnavailable(PipelineError):  # noqa: N818  -- the field's word for it
    """The carrier cannot be reached now. Nothing is lost; call again."""


class LetterGone(PipelineError):  # noqa: N818  -- reads as what it is
    """A dead letter is not there any more, or there is nothing to go back to."""

    def __init__(self, letter: str, why: str) -> None:
        super().__init__(f"dead letter {letter}: {why}")
        self.letter = letter


class TopicUnfit(PipelineError):  # noqa: N818  -- the field's word for it
    """A topic that is there would lose messages. The text says what to set."""

    def __init__(self, topic: str, rule: str) -> None:
        super().__init__(f"topic {topic} {rule}")
        self.topic = topic


class Unreadable(PipelineError):  # noqa: N818  -- the field's word for it
    """A message is not what the admission scripts write. The text says which rule it breaks."""
