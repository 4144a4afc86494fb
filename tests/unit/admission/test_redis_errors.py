"""What an error of Redis means, in the words of every server from 6.2 on."""

import pytest
from redis._parsers.base import BaseParser
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
    MaxConnectionsError,
    RedisError,
    TimeoutError as RedisTimeoutError,
)

from seckill.admission.scripts import unavailable

_6_2 = "ERR Error running script (call to f_" + "a" * 40 + "): @user_script:31: @user_script: 31: "


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        # As 7.0 and later say it, with the script's name behind.
        ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable", "write_refused"),
        ("MISCONF Errors writing to the AOF file: No space left on device", "write_refused"),
        ("OOM command not allowed when used memory > 'maxmemory'. script: ab12, on @user_script:31.", "write_refused"),
        ("NOREPLICAS Not enough good replicas to write.", "write_refused"),
        ("READONLY You can't write against a read only replica. script: ab12", "readonly"),
        ("LOADING Redis is loading the dataset in memory", "loading"),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "loading"),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", "busy"),
        ("CLUSTERDOWN The cluster is down", "connection"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "connection"),
        ("UNBLOCKED force unblock from blocking operation, instance state changed", "connection"),
        # As 6.2 says it, from inside a script.
        (_6_2 + "-MISCONF Redis is configured to save RDB snapshots, but", "write_refused"),
        (_6_2 + "-OOM command not allowed when used memory > 'maxmemory'.", "write_refused"),
        (_6_2 + "-NOREPLICAS Not enough good replicas to write.", "write_refused"),
        (_6_2 + "-READONLY You can't write against a read only replica.", "readonly"),
        # Words that only look like one of these.
        ("BUSYGROUP Consumer Group name already exists", "other"),
        ("BUSYKEY Target key name already exists.", "other"),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", "other"),
        ("ERR no ROOM left for a LOADING bay, it is BUSY", "other"),
        ("NOPERM this user has no permissions to run the 'evalsha' command", "other"),
        ("ERR unknown command 'EVALSHA'", "other"),
    ],
)  # fmt: skip
def test_an_error_reply_did_nothing_and_its_kind_is_known(reply: str, kind: str) -> None:
    """Built by the client library's own parser, which takes the first word off some of them."""
    error = BaseParser.parse_error(reply)
    assert isinstance(error, RedisError)
    found = unavailable(error)
    assert found.kind == kind
    assert found.outcome_known


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RedisTimeoutError("Timeout reading from 127.0.0.1:1"), "timeout"),
        (RedisConnectionError("Connection closed by server."), "connection"),
        (MaxConnectionsError("Too many connections"), "connection"),
    ],
)
def test_without_a_reply_nobody_knows_what_was_done(error: RedisError, kind: str) -> None:
    found = unavailable(error)
    assert found.kind == kind
    assert not found.outcome_known
