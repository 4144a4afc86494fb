"""Key names: one hash tag for a bucket, whatever a shop calls its goods."""

import dataclasses
import re

from hypothesis import given, strategies as st

from seckill.admission.keys import Keys
from seckill.domain.ids import SaleId
from seckill.domain.reservation import BucketId

sales = st.integers(1, 2**32 - 1).map(SaleId)
buckets = st.integers(0, 2**16 - 1)


def hash_tag(key: str) -> str:
    """What Redis Cluster hashes: what stands between the first { and the next }, if anything."""
    found = re.match(r"[^{]*\{([^}]+)\}", key)
    return found[1] if found else key


@given(sales, buckets)
def test_all_keys_of_a_bucket_lie_in_one_slot(sale_id: SaleId, bucket: int) -> None:
    names = dataclasses.astuple(Keys().bucket(BucketId(sale_id, bucket)))
    assert {hash_tag(name) for name in names} == {f"{sale_id}.{bucket}"}
    assert len(set(names)) == len(names)


@given(sales, buckets, sales, buckets)
def test_two_buckets_share_no_key(a: SaleId, n: int, b: SaleId, m: int) -> None:
    one, other = (dataclasses.astuple(Keys().bucket(BucketId(s, k))) for s, k in ((a, n), (b, m)))
    assert ((a, n) == (b, m)) == bool(set(one) & set(other))


def test_prefixes_part_installations() -> None:
    bucket_id = BucketId(SaleId(1), 0)
    one, other = Keys("a").bucket(bucket_id), Keys("b").bucket(bucket_id)
    assert not set(dataclasses.astuple(one)) & set(dataclasses.astuple(other))
    assert Keys("a").sales != Keys("b").sales
