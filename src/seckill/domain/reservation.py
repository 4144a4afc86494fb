"""A reservation: the admitted right to one order.

It is named by the deduction that made it, not by the request: the admission script counts every
change of a stock bucket in ``seq``, and the place (sale, epoch, bucket, seq) is the reservation.
Source: rule 1 of the fence, ``docs/concepts.md``.
"""

from dataclasses import dataclass

from seckill.domain.ids import SaleId

__all__ = ["BucketId", "Place"]


@dataclass(frozen=True, slots=True, order=True)
class BucketId:
    """One shard of the stock of one sale."""

    sale_id: SaleId
    bucket: int


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where in the history of a bucket something happened; unique for ever.

    Attributes:
        sale_id: the sale.
        epoch: counts the openings of the bucket, from 1. Owned by the ledger.
        bucket: which shard of the stock, from 0.
        seq: counts the changes of the bucket within the epoch, from 1.
    """

    sale_id: SaleId
    epoch: int
    bucket: int
    seq: int

    @property
    def bucket_id(self) -> BucketId:
        """The bucket in whose history this place is."""
        return BucketId(self.sale_id, self.bucket)
