"""One request of a buyer, from its intended instant to its end."""

from enum import Enum
from typing import TYPE_CHECKING, Final

from seckill.domain.outcomes import Outcome
from seckill.stress.answers import Answer, Purchase, read_purchase

if TYPE_CHECKING:
    from seckill.stress.rush import Buyer, Rush

__all__ = ["RETRYABLE_ENDS", "RETRYABLE_OUTCOMES", "UNKNOWN_ENDS", "Click", "End"]


class End(Enum):
    """How a request ended."""

    PENDING = "pending"
    """Not yet."""
    ANSWERED = "answered"
    """With a purchase answer of the promised shape."""
    MISANSWERED = "misanswered"
    """With something that is no purchase answer."""
    TIMED_OUT = "timed out"
    """Without an answer in time."""
    CONNECTION_FAILED = "connection failed"
    """Without an answer, because there is no connection (any more)."""


UNKNOWN_ENDS: Final = frozenset({End.MISANSWERED, End.TIMED_OUT, End.CONNECTION_FAILED})
"""After these, when it was sent, something may be sold to a buyer who does not know of it."""
RETRYABLE_ENDS: Final = frozenset({End.TIMED_OUT, End.CONNECTION_FAILED})
RETRYABLE_OUTCOMES: Final = frozenset({Outcome.BLOCKED, Outcome.UNDECIDED, Outcome.PAUSED})


class Click:
    """One request: a planned click, or a retry of one.

    Attributes:
        number: which planned click of the buyer it is or repeats, from 0.
        retry: 0 for the planned click, then counted up.
        quantity: units wanted.
        intended_us: when it is meant to leave; µs after the start of the rush, as all times here.
        sent_us: when its bytes were handed to the kernel; -1 is never.
        done_us: when the last byte of its answer was here, or when it was given up; -1 is not yet.
        end: how it ended.
        late: answered after it had been given up.
        outcome: what was answered.
        status: the HTTP status, 0 without an answer.
        reservation_id: what the answer named.
        polite: False when an answer that must carry Retry-After came without it.
        detail: the reason of an end without a proper answer.
    """

    __slots__ = (
        "_rush",
        "buyer",
        "detail",
        "done_us",
        "end",
        "intended_us",
        "late",
        "number",
        "outcome",
        "polite",
        "quantity",
        "reservation_id",
        "retry",
        "retry_after_s",
        "sent_us",
        "status",
    )

    def __init__(
        self,
        rush: "Rush",
        buyer: "Buyer",
        *,
        number: int,
        retry: int,
        quantity: int,
        intended_us: int,
    ) -> None:
        self._rush = rush
        self.buyer = buyer
        self.number = number
        self.retry = retry
        self.quantity = quantity
        self.intended_us = intended_us
        self.sent_us = -1
        self.done_us = -1
        self.end = End.PENDING
        self.late = False
        self.outcome: Outcome | None = None
        self.status = 0
        self.reservation_id: str | None = None
        self.retry_after_s: int | None = None
        self.polite = True
        self.detail = ""

    @property
    def given_up(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.end is not End.PENDING

    @property
    def unknown(self) -> bool:
        """Whether it may have taken units without the buyer's being told."""
        return self.outcome is Outcome.UNDECIDED or (self.sent_us >= 0 and self.end in UNKNOWN_ENDS)

    @property
    def retryable(self) -> bool:
        """Whether a polite buyer may ask again because of this end."""
        return self.end in RETRYABLE_ENDS or self.outcome in RETRYABLE_OUTCOMES

    def sent(self, at_us: int) -> None:
        """The bytes were handed to the kernel. A second sending keeps the first instant."""
        if self.sent_us < 0:
            self.sent_us = at_us - self._rush.start_us
            self._rush.sent_count += 1

    def answered(self, answer: Answer) -> None:
        """The whole answer is here."""
        if self._rush.over:
            return
        purchase = read_purchase(answer)
        self.status = answer.status
        self.retry_after_s = answer.retry_after_s()
        if isinstance(purchase, Purchase):
            self.outcome = purchase.outcome
            self.reservation_id = purchase.reservation_id
            self.polite = (
                purchase.outcome not in RETRYABLE_OUTCOMES or self.retry_after_s is not None
            )
            self._settle(End.ANSWERED, answer.at_us - self._rush.start_us)
        else:
            self.detail = purchase
            self._settle(End.MISANSWERED, answer.at_us - self._rush.start_us)

    def misanswered(self, reason: str) -> None:
        """What came instead of an answer is not HTTP, or is too long."""
        self.detail = reason
        self._settle(End.MISANSWERED, self._rush.now_us())

    def failed(self, reason: str) -> None:
        """There will be no answer."""
        if self.end is End.PENDING:
            self.detail = reason
            self._settle(End.CONNECTION_FAILED, self._rush.now_us())

    def time_out(self) -> None:
        """The buyer waits no longer."""
        if self.end is End.PENDING:
            self.detail = "no answer in time" if self.sent_us >= 0 else "not sent in time"
            self._settle(End.TIMED_OUT, self._rush.now_us())

    def _settle(self, end: End, done_us: int) -> None:
        if self._rush.over:
            return
        self.late = self.end is not End.PENDING
        self.end = end
        self.done_us = done_us
        self._rush.settled(self)
