"""What `seckill serve --demo` tells its user to try. Apart from demo.py, which loads the stores."""

import shlex
import shutil
import sys
from pathlib import Path

from seckill.runtime.settings import Settings

__all__ = ["demo_hint", "own_command"]


def own_command() -> str:
    """What to type in this folder to run this very program: `seckill`, or where it lies."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m seckill"
    called = called.absolute()
    found = shutil.which(called.name)
    if found and Path(found).resolve() == called.resolve():
        return called.name
    if called.is_relative_to(Path.cwd()):
        return shlex.quote(f"./{called.relative_to(Path.cwd())}")
    return shlex.quote(str(called))


def demo_hint(bind: str, settings: Settings, command: str) -> str:
    """What to try next, for the terminal.

    Args:
        command: what runs this program, as `own_command` says it.
    """
    buy = f"curl -X POST 'http://{bind}/seckill/1?userId=ann'"
    if settings.auth != "dev":
        buy = f"curl -X POST -H 'Authorization: Bearer TOKEN' http://{bind}/seckill/1"
    at = ""
    if settings.data_dir != Path(".seckill").absolute():
        at = f" --data-dir {shlex.quote(str(settings.data_dir))}"
    return "\n".join(
        [
            "",
            "Goods 1 is on sale. In a second terminal, in this folder, try:",
            f"  {buy}",
            f"  curl http://{bind}/goods/1",
            f"  {command} stress --buyers 10000 --stock 100 --clicks 3{at}",
            "      a rush of buyers on a sale of its own, then the audit",
            f"  {command} sale show 1{at}",
            f"  {command} -h",
        ]
    )
