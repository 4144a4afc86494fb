"""For test_fork_server: a fork server, and the programs that are forked off it.

What each does stands in its words.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from seckill.runtime.fork_server import serve_forks

if sys.argv[1:] == ["cannot load"]:
    sys.exit("no room for the library")
# Whoever runs the tests may have them ignore this one (nohup), and every program would too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
words = serve_forks(["random"])
match words:
    case None:
        pass
    case ["exit", code]:
        sys.exit(int(code))
    case ["fail"]:
        raise SystemExit("the ledger is of a newer version")
    case ["wait"]:
        time.sleep(600)
    case ["refuse to end"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.stdout.write("deaf\n")
        sys.stdout.flush()
        time.sleep(600)
    case ["draw"]:
        sys.stdout.write(f"{random.random()}\n")
    case ["read", variable]:
        sys.stdout.buffer.write(os.read(int(os.environ[variable]), 100) + b"\n")
        sys.stdout.write(f"{os.environ['GREETING']}\n")
        sys.stderr.write("and an error\n")
    case ["show"]:
        sys.stdout.write(Path("/proc/self/cmdline").read_text().rstrip("\0") + "\n")
        sys.stdout.write(f"{os.getpgid(0) == os.getpid()}\n")
        sys.stdout.write(f"{[file.name for file in Path('/proc/self/fd').iterdir()]}\n")
        sys.stdout.write(f"{sys.stdin.read()!r}\n")
    case _:
        sys.exit(f"what is {words}?")
