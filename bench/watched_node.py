"""`python -m bench.watched_node start ...`: a node whose callbacks are measured.

It runs on asyncio's own loop, because uvloop's callbacks cannot be measured. At SIGUSR1 and when it
ends it writes the longest of them since to stderr, one line each: `PHASE callback MS NAME`, where
the phase is `working` or `ending`.
"""

import asyncio
import signal
import sys

from bench.inside import Watched
from chronik.cli import node
from chronik.cli.main import main


def run() -> None:
    watched = Watched()
    watched.install()
    node._loop_factory = lambda: asyncio.SelectorEventLoop

    def write(phase: str) -> None:
        longest, watched.longest = watched.longest, []
        for spent, _, name in sorted(longest, reverse=True):
            print(f"{phase} callback {spent * 1000:.1f} {name}", file=sys.stderr, flush=True)

    signal.signal(signal.SIGUSR1, lambda *_: write("working"))
    try:
        main()
    finally:
        write("ending")


if __name__ == "__main__":
    run()
