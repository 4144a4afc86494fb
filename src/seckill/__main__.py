"""``python -m seckill``: the same as the command ``seckill``."""

from seckill.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
