"""The one rule for names that come from outside."""

import pytest
from hypothesis import given, strategies as st

from seckill.domain.errors import InvalidValue
from seckill.domain.ids import ID_BYTES_MAX, check_goods_id, check_id, check_user_id


@pytest.mark.parametrize(
    "text",
    ["1", "a:b", "{a}", "x}y{z", "../../x", "%00", "é", "e\u0301", "😀", "٣", "商品-1", "x" * 64, "名" * 64],
)  # fmt: skip
def test_any_letters_may_name_a_user_and_stay_as_they_are(text: str) -> None:
    """C35. The two forms of é are two users, on purpose."""
    assert check_user_id(text) == text


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "empty"),
        ("x" * 65, "at most 64 characters"),
        ("x" * 1_000_000, "at most 64 characters"),
        ("😀" * 64, f"at most {ID_BYTES_MAX} bytes"),
        (" ", "white space"),
        ("a b", "white space"),
        ("a\u00a0b", "white space"),
        ("a\u3000b", "white space"),
        ("a\nb", "U\\+000A"),
        ("a\n", "U\\+000A"),
        ("a\0b", "U\\+0000"),
        ("\ud800", "U\\+D800"),
        ("a\u202eb", "U\\+202E"),
        ("a\u200bb", "U\\+200B"),
        ("\ufeffa", "U\\+FEFF"),
        ("\ue000", "U\\+E000"),
        ("a\u2028b", "U\\+2028"),
    ],
)
def test_what_no_store_and_no_log_shows_alike_is_refused_by_name(text: str, rule: str) -> None:
    """C35."""
    with pytest.raises(InvalidValue, match=rule) as refused:
        check_id("user_id", text)
    assert refused.value.field == "user_id"


@pytest.mark.parametrize("text", ["a/b", "a\\b", "a%b", "a?b", "a#b", ".", "..", "../x"])
def test_a_goods_id_is_one_segment_of_a_path(text: str) -> None:
    with pytest.raises(InvalidValue):
        check_goods_id(text)


@given(st.text(max_size=70))
def test_a_name_is_taken_as_it_is_or_refused(text: str) -> None:
    try:
        assert check_id("user_id", text) == text
    except InvalidValue as refused:
        assert refused.rule  # noqa: PT017  -- either way out is right
    else:
        assert len(text.encode()) <= ID_BYTES_MAX
        assert not any(character.isspace() for character in text)
