"""Every key name of this package, made here and nowhere else.

All keys of a namespace share a hash tag, so that one script may touch them all on a Redis Cluster:
they live on one shard. That is no bottleneck: what goes there are leases of many tokens each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NAMESPACE: Final = re.compile(r"[A-Za-z0-9._:-]{1,100}")


@dataclass(frozen=True, slots=True)
class SentinelKeys:
    """Makes key names for one service.

    Args:
        namespace: of the service: 1 to 100 of letters, digits and ``. _ : -``. Services that share
            a Redis must not share it.

    Raises:
        ValueError: it has other characters or is too long.
    """

    namespace: str

    def __post_init__(self) -> None:
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ValueError(
                "a namespace has 1 to 100 letters, digits and . _ : - only, not "
                f"{self.namespace[:120]!r}"
            )

    @property
    def _base(self) -> str:
        return f"sentinel:{{{self.namespace}}}:"

    @property
    def workers(self) -> str:
        """Hash; the workers that are there (lua/lease.lua)."""
        return f"{self._base}workers"

    def flow_tokens(self, flow_id: int) -> str:
        """String; what was granted of a flow rule in its last window (lua/lease.lua)."""
        return f"{self._base}flow:{flow_id}"

    def value_tokens(self, flow_id: int, digest: str) -> str:
        """String; the same for one value of a hot-parameter rule."""
        return f"{self._base}value:{flow_id}:{digest}"

    def rules(self, kind: str) -> str:
        """Hash; the versions of the rules of one kind, by number (lua/save_rules.lua)."""
        return f"{self._base}rules:{kind}"
