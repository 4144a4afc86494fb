"""Numbers with their nouns."""

from seckill.domain.wording import counted


def test_one_is_told_as_one_and_everything_else_as_many() -> None:
    assert [counted(n, "buyer") for n in (0, 1, 2, 10_000)] == [
        "0 buyers",
        "1 buyer",
        "2 buyers",
        "10,000 buyers",
    ]
    assert counted(2, "entry", "entries") == "2 entries"
