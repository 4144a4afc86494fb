"""What can go wrong on the Redis side.

::

    SeckillError
    └── AdmissionError
        ├── StockUnavailable   Redis cannot answer now; retryable. ``outcome_known`` says whether
        │                      the command surely did nothing.
        ├── BucketFenced       the bucket may not be trusted until it is opened again
        ├── DurabilityRefused  Redis is not configured to keep what the setting promises
        └── ScriptRefused      a script refused its arguments: an error in this program
"""

from seckill.domain.errors import SeckillError
from seckill.domain.reservation import BucketId

__all__ = [
    "AdmissionError",
    "BucketFenced",
    "DurabilityRefused",
    "ScriptRefused",
    "StockUnavailable",
]


class AdmissionError(SeckillError):
    """Anything that the Redis side raises."""


class StockUnavailable(AdmissionError):  # noqa: N818  -- the field's word for it
    """Redis cannot answer now. Every script is safe to be sent again.

    Attributes:
        kind: a word for metrics: ``connection``, ``timeout``, ``loading``, ``readonly``,
            ``write_refused``, ``busy``, ``not_durable``, ``other``.
        outcome_known: True when the command surely changed nothing.
    """

    def __init__(self, kind: str, text: str, *, outcome_known: bool) -> None:
        super().__init__(f"Redis cannot answer ({kind}): {text}")
        self.kind = kind
        self.outcome_known = outcome_known


class BucketFenced(AdmissionError):  # noqa: N818  -- the field's word for it
    """The bucket may not be trusted: missing, opened elsewhere, behind or torn."""

    def __init__(self, bucket_id: BucketId, reason: str) -> None:
        super().__init__(f"bucket {bucket_id.sale_id}.{bucket_id.bucket} is fenced: {reason}")
        self.bucket_id = bucket_id
        self.reason = reason


class DurabilityRefused(AdmissionError):  # noqa: N818  -- the field's word for it
    """Redis is not configured to keep what the setting promises."""


class ScriptRefused(AdmissionError):  # noqa: N818  -- the field's word for it
    """A script refused its arguments. Nothing was changed; retrying cannot help."""
