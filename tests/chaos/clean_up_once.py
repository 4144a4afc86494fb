"""One clean-up in a process of its own, which may die: ``clean_up_once.py DATA_DIR SETTLE_MS``.

The service waits a quarter of a minute before the keys of a retired sale go; a test cannot. Prints how many
sales were cleaned.
"""

import asyncio
import sys
from pathlib import Path

from seckill.runtime.bootstrap import open_stores
from seckill.runtime.clean_up import clean_up
from seckill.runtime.settings import load_settings
from seckill.runtime.settings_report import with_run_settings


async def _once(data_dir: Path, settle_ms: int) -> int:
    settings = with_run_settings(
        load_settings({"data_dir": data_dir, "redis_timeout_ms": 30_000})
    ).settings
    async with open_stores(settings) as stores:
        return await clean_up(stores, 0, settle_ms)


if __name__ == "__main__":
    print(asyncio.run(_once(Path(sys.argv[1]), int(sys.argv[2]))))  # noqa: T201  -- its answer
