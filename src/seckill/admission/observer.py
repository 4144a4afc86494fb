"""What the Redis side tells whoever measures it."""

from typing import Protocol

__all__ = ["AdmissionObserver", "SilentObserver"]


class AdmissionObserver(Protocol):
    """Receives counts. Called on the hot path: must be cheap and must not raise."""

    def batch_decided(self, requests: int, duration_ms: float) -> None:
        """One batch was decided by one call."""
        ...

    def undecided(self, cause: str) -> None:
        """One request could not be decided; `Decision.cause` says why."""
        ...

    def redis_failed(self, kind: str) -> None:
        """One call failed; `StockUnavailable.kind`."""
        ...

    def answered_by_flag(self) -> None:
        """One request was answered "sold out" without asking Redis."""
        ...

    def flag_raised(self) -> None:
        """A bucket's sold-out flag went up: from now on requests may be answered by it."""
        ...

    def queue_changed(self, by: int) -> None:
        """So many more requests wait than before, fewer if negative; over all buckets."""
        ...

    def fenced(self, buckets: int) -> None:
        """So many buckets more, or fewer when negative, are fenced as this process sees it."""
        ...


class SilentObserver:
    """Counts nothing."""

    def batch_decided(self, requests: int, duration_ms: float) -> None:
        """See AdmissionObserver."""

    def undecided(self, cause: str) -> None:
        """See AdmissionObserver."""

    def redis_failed(self, kind: str) -> None:
        """See AdmissionObserver."""

    def answered_by_flag(self) -> None:
        """See AdmissionObserver."""

    def flag_raised(self) -> None:
        """See AdmissionObserver."""

    def queue_changed(self, by: int) -> None:
        """See AdmissionObserver."""

    def fenced(self, buckets: int) -> None:
        """See AdmissionObserver."""
