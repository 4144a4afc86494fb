"""Log lines: for people or as JSON, each with the part that wrote it, never with a secret."""

import logging
import re
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, Final, Literal, TextIO

import structlog

from seckill.domain.ids import GoodsId, SaleId
from seckill.domain.reservation import BucketId
from seckill.runtime.settings import mask_url

__all__ = ["configure_logging", "name_goods"]

GoodsOf = Callable[[SaleId], GoodsId | None]

_SECRET_NAME: Final = re.compile(
    r"(?i)(secret|password|passwd|authorization|cookie|token|api_?key|private_?key)"
)
_BEARER: Final = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]+")
_JWT: Final = re.compile(r"\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_OF_OPERATORS: Final = re.compile(r"\bsk_admin_[A-Za-z0-9_-]+|(?<=/admin/setup#)[A-Za-z0-9_-]+")
_NESTING_MAX: Final = 4


class _Names:
    """What log lines of this process call things by; set up anew with the log itself."""

    goods_of: GoodsOf | None = None


def configure_logging(
    *,
    level: Literal["debug", "info", "warning", "error"],
    log_format: Literal["console", "json"],
    role: str,
    slot: int,
    stream: TextIO | None = None,
) -> None:
    """Send the log lines of this process, structlog's and the standard library's, to one place.

    Calling it again replaces what was set up before.

    Args:
        level: least important kind that is written.
        log_format: ``console`` for people, ``json`` for one JSON object a line.
        role: what this process is, such as ``web``.
        slot: its number among those.
        stream: where to; standard error by default, since standard output is for answers.
    """
    target = stream or sys.stderr
    _Names.goods_of = None

    def with_part(
        _logger: Any, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event.setdefault("role", role)
        event.setdefault("slot", slot)
        return event

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        with_goods,
        structlog.stdlib.ExtraAdder(),
        with_part,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    finish: list[structlog.typing.Processor]
    if log_format == "json":
        # The traceback becomes text first, so that the secrets in it are masked as well.
        finish = [
            structlog.processors.format_exc_info,
            without_secrets,
            structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
        ]
    else:
        finish = [
            structlog.processors.format_exc_info,
            without_secrets,
            structlog.dev.ConsoleRenderer(colors=target.isatty()),
        ]
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *finish],
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # Alembic tells of each start that it found the schema as it should be.
    logging.getLogger("alembic").setLevel(max(root.level, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def name_goods(goods_of: GoodsOf) -> None:
    """Have the lines about a bucket name the goods in it: operators know those, not numbers.

    Args:
        goods_of: the goods of a sale, or None where this process does not know it.
    """
    _Names.goods_of = goods_of


def with_goods(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Write a bucket as commands and reports do, and its goods beside it."""
    bucket = event.get("bucket")
    if isinstance(bucket, BucketId):
        event["bucket"] = f"{bucket.sale_id}.{bucket.bucket}"
        goods = _Names.goods_of(bucket.sale_id) if _Names.goods_of else None
        if goods is not None:
            event.setdefault("goods", goods)
    return event


def without_secrets(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Mask what looks like a secret, by the name of its field or by its own look."""
    return {name: _masked(name, value, 0) for name, value in event.items()}


def _masked(name: str, value: Any, depth: int) -> Any:
    if value and _SECRET_NAME.search(name):
        return "***"
    match value:
        case str():
            shown = _OF_OPERATORS.sub("***", mask_url(value))
            return _JWT.sub("***", _BEARER.sub(r"\1***", shown))
        case dict() if depth < _NESTING_MAX:
            return {key: _masked(str(key), item, depth + 1) for key, item in value.items()}
        case list() | tuple() if depth < _NESTING_MAX:
            return [_masked("", item, depth + 1) for item in value]
        case BaseException():
            return _masked("", str(value), depth)
        case _:
            return value
