"""Every key name in Redis, made here and nowhere else.

All keys of one bucket share a hash tag made of two numbers, so that the scripts run on a Redis
Cluster and nothing that a shop writes into a goods id can move a key to another slot.
"""

from dataclasses import dataclass

from seckill.domain.reservation import BucketId

__all__ = ["BucketKeys", "Keys"]


@dataclass(frozen=True, slots=True)
class BucketKeys:
    """The keys of one bucket.

    Attributes:
        meta: hash; counters, window, limit, epoch and server identity of the bucket.
        buyers: hash; user id to the reservations that the user holds.
        outbox: stream; what happened, for the ledger.
        released: hash; ``epoch.seq`` of a released reservation to the seq of its release.
        changes: hash; id of an applied stock change to the seq at which it was applied.
        dead: stream; outbox entries that could not be read, with the reason.
        base: what the names of all of them begin with.
    """

    meta: str
    buyers: str
    outbox: str
    released: str
    changes: str
    dead: str
    base: str

    def staged_buyers(self, epoch: int) -> str:
        """Hash; buyers of a bucket that is being rebuilt under an epoch."""
        return f"{self.base}staged_buyers:{epoch}"


@dataclass(frozen=True, slots=True)
class Keys:
    """Makes key names under one prefix."""

    prefix: str = "seckill"

    @property
    def sales(self) -> str:
        """Hash; the sales that buyers may ask for: goods id to definition. See catalogue.py."""
        return f"{self.prefix}:sales"

    @property
    def probe(self) -> str:
        """String with a short life; written to learn whether Redis takes writes. Never read."""
        return f"{self.prefix}:probe"

    def bucket(self, bucket_id: BucketId) -> BucketKeys:
        """The keys of one bucket."""
        base = f"{self.prefix}:{{{bucket_id.sale_id}.{bucket_id.bucket}}}:"
        return BucketKeys(
            meta=base + "meta",
            buyers=base + "buyers",
            outbox=base + "outbox",
            released=base + "released",
            changes=base + "changes",
            dead=base + "dead",
            base=base,
        )
