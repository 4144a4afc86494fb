"""Whether Redis may be asked at all: the port of a circuit breaker around the batches.

One call of the circuit is one batch, with whatever retries it takes: a hiccup that the batcher
rides out is no failure, so the two do not work against each other.
"""

from typing import Protocol

__all__ = ["AlwaysClosed", "Circuit", "CircuitCall"]


class CircuitCall(Protocol):
    """One batch that was let through. Exactly one of its methods is called, once."""

    def end(self, *, failed: bool) -> None:
        """The batch is over; ``failed``: Redis could not decide it, or not all of it."""
        ...

    def abandon(self) -> None:
        """The batch was cancelled, which says nothing about Redis."""
        ...


class Circuit(Protocol):
    """Decides whether a batch is sent."""

    def refuses(self) -> bool:
        """Whether a batch would be refused now. Changes nothing; called for each request."""
        ...

    async def begin(self) -> CircuitCall | None:
        """Begin a batch, once it is its turn; None when it must not be sent."""
        ...


class AlwaysClosed:
    """A circuit that lets everything through."""

    def refuses(self) -> bool:
        """See Circuit."""
        return False

    async def begin(self) -> CircuitCall | None:
        """See Circuit."""
        return self

    def end(self, *, failed: bool) -> None:
        """See CircuitCall."""

    def abandon(self) -> None:
        """See CircuitCall."""
