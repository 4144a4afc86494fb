import pytest

from seckill.web.languages import Language, Languages


@pytest.mark.parametrize(
    ("header", "language"),
    [
        (None, Language.ZH),
        (b"", Language.ZH),
        (b"en", Language.EN),
        (b"EN-us", Language.EN),
        (b"zh-TW", Language.ZH),
        (b"fr, de", Language.ZH),
        (b"en;q=0.8, zh;q=0.9", Language.ZH),
        (b"zh;q=0.8, en;q=0.9", Language.EN),
        (b"en, zh", Language.EN),
        (b"zh, en", Language.ZH),
        (b"*", Language.ZH),
        (b"zh;q=0, *", Language.EN),
        (b"en;q=0", Language.ZH),
        (b"en;q=0, *;q=0.1", Language.ZH),
        (b"fr;q=0.9, en;q=0.1", Language.EN),
        (b"en; q = 0.5 , zh ; q=0.4", Language.EN),
        (b"en;q=nonsense", Language.ZH),
        (b"en;q=2", Language.ZH),
        (b"english", Language.ZH),
        (b"en-GB;level=1;q=0.3, zh-CN;q=0.2", Language.EN),
        (b"\xff\xfe;;;,,,=", Language.ZH),
        (b"fr," * 40 + b"en", Language.ZH),
    ],
)
def test_the_language_that_is_wanted_most(header: bytes | None, language: Language) -> None:
    languages = Languages()
    assert languages.choose(header) is language
    assert languages.choose(header) is language


def test_the_memory_of_headers_is_bounded() -> None:
    languages = Languages(entries_max=4)
    for number in range(100):
        languages.choose(b"en;q=0.%d" % number)
        languages.choose(b"x" * 300 + b"%d" % number)
    assert len(languages._known) <= 4
