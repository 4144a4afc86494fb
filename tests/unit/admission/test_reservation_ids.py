"""Reservation ids: never the same twice, never guessed, the same in every process."""

import base64
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from seckill.admission.reservation_ids import ReservationIds
from seckill.domain.ids import SaleId
from seckill.domain.reservation import Place

KEY = bytes(range(16))

places = st.builds(
    Place,
    st.integers(1, 2**32 - 1).map(SaleId),
    st.integers(1, 2**16 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(1, 2**40 - 1),
)


@given(places)
def test_an_id_leads_back_to_its_place(place: Place) -> None:
    assert ReservationIds(KEY).decode(ReservationIds(KEY).encode(place)) == place


@given(st.lists(places, max_size=20))
def test_many_at_once_are_the_same_as_one_by_one(found: list[Place]) -> None:
    ids = ReservationIds(KEY)
    assert ids.encode_many(found) == [ids.encode(place) for place in found]


@given(st.text(max_size=40) | st.text("0123456789abcdef", min_size=32, max_size=32))
def test_what_this_installation_never_made_is_no_id(text: str) -> None:
    # One in 2^24 made-up texts of the right form would pass; hypothesis does not try that many.
    assert ReservationIds(KEY).decode(text) is None


@given(places)
def test_an_id_has_one_spelling(place: Place) -> None:
    ids = ReservationIds(KEY)
    text = ids.encode(place)
    for other in (text.upper(), text + " ", text[:-1], text + "0", " " + text, text + "\n"):
        if other != text:
            assert ids.decode(other) is None


@given(places)
def test_another_installation_does_not_know_it(place: Place) -> None:
    assert ReservationIds(KEY[::-1]).decode(ReservationIds(KEY).encode(place)) is None


def test_neighbours_do_not_look_alike() -> None:
    """They can be neither counted nor guessed from one another."""
    ids = ReservationIds(KEY)
    found = [ids.encode(Place(SaleId(1), 1, 0, seq)) for seq in range(1, 2_000)]
    assert found != sorted(found)
    for one, other in itertools.pairwise(found):
        same = sum(a == b for a, b in zip(one, other, strict=True))
        assert same < len(one) / 2


def test_a_key_of_another_length_is_refused() -> None:
    for length in (0, 15, 17, 32):
        with pytest.raises(ValueError, match="16 bytes"):
            ReservationIds(bytes(length))


def test_a_million_ids_of_eight_forked_processes_are_a_million() -> None:
    """C77. They are made from places, and a place is given out once, by Redis."""
    program = Path(__file__).with_name("forked_ids.py")
    told = subprocess.run(
        [sys.executable, program, KEY.hex()], capture_output=True, text=True, check=False
    )
    assert told.stdout == "1000000\n", told.stderr


def test_an_id_is_fit_for_a_path_a_header_and_a_log() -> None:
    text = ReservationIds(KEY).encode(Place(SaleId(1), 1, 0, 1))
    assert text.isascii()
    assert text.isalnum()
    assert text == text.lower()
    assert base64.b64encode(KEY).decode() not in text
