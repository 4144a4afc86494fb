"""What a worker has in hand: offsets go up only over what is settled, partition by partition."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from seckill.pipeline.kafka.hands import Hands


class Message:
    def __init__(self, partition: int, offset: int, at_ms: int = 0) -> None:
        self.place = (partition, offset)
        self.at_ms = at_ms

    def partition(self) -> int:
        return self.place[0]

    def offset(self) -> int:
        return self.place[1]

    def timestamp(self) -> tuple[int, int]:
        return (1, self.at_ms)


def hands_with(*places: tuple[int, int]) -> Hands:
    hands = Hands()
    for place in places:
        taken: Any = Message(*place)
        hands.take([taken])
    return hands


def test_an_offset_goes_up_only_over_what_is_settled() -> None:
    hands = hands_with((0, 5), (0, 6), (0, 7), (1, 3))
    assert hands.positions() == {0: 5, 1: 3}
    hands.settle([(0, 6)])
    assert hands.positions()[0] == 5
    hands.settle([(0, 5)])
    assert hands.positions()[0] == 7
    hands.settle([(0, 7)])
    assert hands.positions()[0] == 8


def test_what_is_committed_is_not_told_again() -> None:
    hands = hands_with((0, 5), (0, 6))
    hands.settle([(0, 5)])
    hands.committed({0: 6})
    assert hands.positions() == {}
    hands.settle([(0, 6)])
    assert hands.positions() == {0: 7}


def test_of_a_partition_that_is_gone_nothing_is_committed() -> None:
    hands = hands_with((0, 5), (1, 3))
    hands.drop({0})
    hands.settle([(0, 5)])
    assert hands.positions() == {1: 3}
    assert hands.find(0, 5) is None
    assert [held.message.offset() for held in hands.waiting(9)] == [3]


def test_what_came_first_is_given_first_whatever_partition_it_is_of() -> None:
    hands = hands_with((1, 3), (0, 5), (1, 4), (0, 6))
    assert [held.message.offset() for held in hands.waiting(3)] == [3, 5, 4]
    hands.settle([(1, 3), (0, 5)])
    assert [held.message.offset() for held in hands.waiting(3)] == [4, 6]
    assert len(hands) == 2


def test_the_oldest_message_tells_the_age() -> None:
    hands = Hands()
    assert hands.oldest_at_ms() is None
    first: Any = Message(0, 1, at_ms=500)
    second: Any = Message(1, 1, at_ms=300)
    hands.take([first, second])
    assert hands.oldest_at_ms() == 300
    hands.settle([(1, 1)])
    assert hands.oldest_at_ms() == 500


def test_a_partition_that_is_read_backwards_is_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError):
        hands_with((0, 5), (0, 5))


@given(st.integers(1, 30), st.lists(st.integers(0, 29)))
def test_the_position_is_the_first_that_is_not_settled(count: int, settled: list[int]) -> None:
    hands = hands_with(*((0, offset) for offset in range(count)))
    for offset in settled:
        hands.settle([(0, offset)])
    open_ = sorted(set(range(count)) - set(settled))
    assert hands.positions().get(0) == (open_[0] if open_ else count)
    assert [held.message.offset() for held in hands.waiting(100)] == open_
