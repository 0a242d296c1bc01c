"""`python -m bench.watched_node start ...`: a node whose callbacks are measured.

It runs on asyncio's own loop, because uvloop's callbacks cannot be measured. When it ends it
writes the longest of them to stderr, one line each: `callback MS NAME`.
"""

import asyncio
import sys

from bench.inside import Watched
from chronik.cli import node
from chronik.cli.main import main


def run() -> None:
    watched = Watched()
    watched.install()
    node._loop_factory = lambda: asyncio.SelectorEventLoop
    try:
        main()
    finally:
        for spent, _, name in sorted(watched.longest, reverse=True):
            print(f"callback {spent * 1000:.1f} {name}", file=sys.stderr)


if __name__ == "__main__":
    run()
