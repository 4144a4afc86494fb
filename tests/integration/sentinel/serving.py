"""A process with an engine, a rule store, a metric log and a command port; says its port, sells on."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from seckill.sentinel import Sentinel
from seckill.sentinel.stores import FileRuleStore
from seckill.sentinel.transport import EngineSource, SentinelTransport, TransportSettings


async def main() -> None:
    folder = Path(sys.argv[1])
    sentinel = Sentinel(rule_store=FileRuleStore(folder / "rules"))
    source = EngineSource(sentinel)
    settings = TransportSettings(app="shop", port=0, metric_folder=folder / "metrics")
    async with SentinelTransport(source, source, settings) as transport:
        sys.stdout.write(f"{transport.port}\n")
        sys.stdout.flush()
        while True:
            entry = sentinel.try_entry("buy")
            if not isinstance(entry, Exception):
                entry.exit()
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(main())
