import re
import subprocess
import sys

import pytest

from seckill.web.attempts import AttemptIds
from seckill.web.problems import Malformed

SHAPE = re.compile(r"[A-Za-z0-9_-]{16}")


def test_the_same_key_names_the_same_attempt_in_every_process() -> None:
    one, other = AttemptIds(), AttemptIds()
    assert one.of_key(b"K-1") == other.of_key(b"K-1")
    assert one.of_key(b"K-1") != one.of_key(b"K-2")
    assert SHAPE.fullmatch(one.of_key(b"!"))
    assert SHAPE.fullmatch(one.of_key(b"~" * 255))


@pytest.mark.parametrize(
    "key", [b"", b"~" * 256, b"two words", b"tab\there", b"a\x00b", "é".encode(), b"\x7f", b"\n"]
)
def test_a_key_that_breaks_the_rule_is_refused(key: bytes) -> None:
    with pytest.raises(Malformed) as refused:
        AttemptIds().of_key(key)
    assert refused.value.field == "Idempotency-Key"


def test_fresh_attempts_are_all_different() -> None:
    attempts = AttemptIds()
    made = [attempts.fresh() for _ in range(2_000)]
    assert len(set(made)) == 2_000
    assert all(SHAPE.fullmatch(attempt) for attempt in made)


# A program of its own: the threads of a test process would not be in its forked child.
_FORKS = """
import os
from seckill.web.attempts import AttemptIds
attempts = AttemptIds()
attempts.fresh()
print(*attempts._stock, flush=True)
child = os.fork()
if child == 0:
    print(attempts.fresh(), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_process_throws_the_inherited_randomness_away() -> None:
    told = subprocess.run(
        [sys.executable, "-c", _FORKS], capture_output=True, text=True, check=False
    )
    inherited, drawn = told.stdout.splitlines()
    assert SHAPE.fullmatch(drawn), told.stderr
    assert len(inherited.split()) > 1
    assert drawn not in inherited.split()
