"""A reservation: the admitted right to one order.

It is named by the deduction that made it, not by the request: the admission script counts every
change of a stock bucket in ``seq``, and the place (sale, epoch, bucket, seq) is the reservation.
Source: rule 1 of the fence, ``docs/concepts.md``.
"""

from dataclasses import dataclass
from typing import NamedTuple

from seckill.domain.ids import SaleId

__all__ = ["BucketId", "Place"]


@dataclass(frozen=True, slots=True, order=True)
class BucketId:
    """One shard of the stock of one sale."""

    sale_id: SaleId
    bucket: int


class Place(NamedTuple):
    """Where in the history of a bucket something happened; unique for ever.

    A tuple, where its neighbours are dataclasses: each order is looked up by its place half a dozen
    times on its way into the books, and a tuple is hashed and compared without running Python.

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
