"""Where the rules of flow control are kept: on this host, or in Redis for all hosts together."""

from importlib import resources
from pathlib import Path
from typing import Final

import structlog

from seckill.runtime.errors import RulesUnusable
from seckill.runtime.settings import Settings
from seckill.sentinel import SentinelError
from seckill.sentinel.rules import KINDS
from seckill.sentinel.stores import FileRuleStore, LayeredRuleStore
from seckill.sentinel.stores.layered import VersionedStore

__all__ = ["HostRuleCopies", "StoredRules", "default_rules", "open_rules"]

_LOG: Final = structlog.get_logger(__name__)

StoredRules = VersionedStore


def default_rules() -> list[Path]:
    """Rule files that count for their kind until something of the kind is saved."""
    folder = resources.files("seckill.runtime") / "default_rules"
    return [Path(str(one)) for one in folder.iterdir() if one.name.endswith(".json")]


def open_rules(settings: Settings, *, alone: bool = False) -> StoredRules:
    """The rules of a service.

    Args:
        settings: of the service.
        alone: look at this host only, whatever the settings say: while nothing runs.

    Raises:
        RulesUnusable: the folder cannot be used.
    """
    folder = settings.data.rules
    try:
        on_host = FileRuleStore(folder, seeds=default_rules())
    except OSError as error:
        raise RulesUnusable(f"{folder}: {error.strerror or error}") from error
    if alone or settings.rule_store == "file":
        return on_host
    # Only who keeps rules there needs it.
    from seckill.admission.redis_client import connect_blocking  # noqa: PLC0415
    from seckill.sentinel.redis import RedisRuleStore  # noqa: PLC0415

    client = connect_blocking(settings.redis_url, timeout_ms=settings.redis_timeout_ms)
    store = HostRuleCopies(RedisRuleStore(client, namespace=settings.key_prefix), on_host)
    store.take_over()
    return store


class HostRuleCopies(LayeredRuleStore):
    """Rules in Redis, with a copy on this host of what is in force.

    Args:
        shared: decides.
        on_host: the copy: what a start without Redis obeys.
    """

    def __init__(self, shared: VersionedStore, on_host: FileRuleStore) -> None:
        super().__init__(shared, on_host)
        self._shared = shared
        self._on_host = on_host

    def take_over(self) -> None:
        """Tell Redis of what was changed on this host while nothing ran; the later version wins."""
        for kind in KINDS:
            try:
                adopted = self._shared.adopt(kind, self._on_host.history(kind))
            except (SentinelError, OSError) as error:
                _LOG.warning("rules of this host are not in Redis", kind=kind, error=str(error))
                return
            if adopted:
                _LOG.info("Redis has the rules of this host", kind=kind, versions=adopted)
