"""The entry points.

    main      `chronik`
    server    `chronik-server`, which is `chronik start`

A node should be up in the time that the command line framework takes to load. So `start` with
nothing but well-formed options goes straight to the node; help, mistakes and all other commands go
to `commands`.
"""

import sys


def main() -> None:
    """Run the command that the arguments name."""
    _run(sys.argv[1:])


def server() -> None:
    """Run `chronik start` with the arguments given."""
    _run(["start", *sys.argv[1:]])


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["start"]:
        from chronik.cli import node

        given = node.parse(arguments[1:])
        if given is not None:
            sys.exit(node.start(given))
    from chronik.cli.commands import app

    app(arguments, prog_name="chronik")
