"""Log lines: who wrote them, in which form, and that no secret is in them."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from seckill.domain.ids import GoodsId, SaleId
from seckill.domain.reservation import BucketId
from seckill.runtime.logs import configure_logging, name_goods


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.parametrize(("level", "told"), [("debug", True), ("warning", True), ("error", False)])
def test_alembic_tells_nothing_that_is_not_a_warning(level: Any, told: bool) -> None:
    stream = io.StringIO()
    configure_logging(level=level, log_format="json", role="prepare", slot=0, stream=stream)
    migrations = logging.getLogger("alembic.runtime.migration")
    migrations.info("Context impl SQLiteImpl.")
    assert stream.getvalue() == ""
    migrations.warning("the schema is of a later version")
    assert bool(stream.getvalue()) is told


def test_a_line_about_a_bucket_names_its_goods_where_they_are_known() -> None:
    stream = io.StringIO()
    configure_logging(level="info", log_format="json", role="web", slot=0, stream=stream)
    log = structlog.get_logger("test")
    log.warning("bucket is fenced", bucket=BucketId(SaleId(7), 1))
    name_goods({SaleId(7): GoodsId("茶")}.get)
    log.warning("bucket is fenced", bucket=BucketId(SaleId(7), 1))
    log.warning("bucket is fenced", bucket=BucketId(SaleId(8), 0), goods="given")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["bucket"], line.get("goods")) for line in lines] == [
        ("7.1", None),
        ("7.1", "茶"),
        ("8.0", "given"),
    ]


def test_a_json_line_says_which_part_wrote_it_and_holds_no_secret() -> None:
    stream = io.StringIO()
    configure_logging(level="info", log_format="json", role="web", slot=3, stream=stream)
    log = structlog.get_logger("test")
    log.debug("unseen")
    try:
        int("redis://:hunter2@h:1/0")
    except ValueError:
        log.exception(
            "broke",
            jwt_secret="hunter2",
            url="postgresql://u:hunter2@h/d",
            headers={"Authorization": "Bearer hunter2", "path": "/x"},
            said="Bearer hunter2 and eyJhbGciOi.eyJzdWIi.hunter2",
            shown="sk_admin_0123456789ab_hunter2, or http://h/admin/setup#hunter2 once",
            buyer="李雷",
        )
    logging.getLogger("uvloop").warning("plain %s", "redis://:hunter2@h:1")
    lines = stream.getvalue().splitlines()
    assert "hunter2" not in stream.getvalue()
    assert "李雷" in lines[0]
    first, second = (json.loads(line) for line in lines)
    assert (first["event"], first["level"], first["role"], first["slot"]) == (
        "broke",
        "error",
        "web",
        3,
    )
    assert "ValueError" in first["exception"]
    assert first["headers"]["path"] == "/x"
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["level"], second["role"]) == (
        "plain redis://:***@h:1", "warning", "web",
    )  # fmt: skip


def test_a_console_line_is_one_line_for_people_without_colours_in_a_file() -> None:
    stream = io.StringIO()
    configure_logging(level="warning", log_format="console", role="worker", slot=0, stream=stream)
    configure_logging(level="warning", log_format="console", role="worker", slot=0, stream=stream)
    log = structlog.get_logger("test")
    log.info("unseen")
    log.warning("seen", password="hunter2", orders=5)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "seen" in text
    assert "orders=5" in text
    assert "hunter2" not in text
    assert "\x1b" not in text
