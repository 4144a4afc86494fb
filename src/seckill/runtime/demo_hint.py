"""What `seckill serve --demo` tells its user to try. Apart from demo.py, which loads the stores."""

from seckill.runtime.settings import Settings

__all__ = ["demo_hint"]


def demo_hint(bind: str, settings: Settings) -> str:
    """What to try next, for the terminal."""
    buy = f"curl -X POST 'http://{bind}/seckill/1?userId=ann'"
    if settings.auth != "dev":
        buy = f"curl -X POST -H 'Authorization: Bearer TOKEN' http://{bind}/seckill/1"
    return "\n".join(
        [
            "",
            "Goods 1 is on sale. In a second terminal, try:",
            f"  {buy}",
            f"  curl http://{bind}/goods/1",
            "  seckill stress --buyers 10000 --stock 100 --clicks 3   a rush, then the audit",
            "  seckill sale show 1        seckill status        seckill -h",
            "Ctrl-C ends everything; the next start goes on with the same data.",
        ]
    )
