"""The commands by name. A command's module is imported only when that command is used."""

import importlib
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from chronik import __version__

# In the order of a new user's first minutes, which is also the order of the help.
COMMANDS: Final = {
    "start": "chronik.cli.start",
    "topics": "chronik.cli.topics",
    "produce": "chronik.cli.produce",
    "consume": "chronik.cli.consume",
    "groups": "chronik.cli.groups",
    "transactions": "chronik.cli.transactions",
    "cluster": "chronik.cli.cluster",
    "pipeline": "chronik.cli.pipeline",
    "sql": "chronik.cli.sql",
    "storage": "chronik.cli.storage",
}


class _Commands(TyperGroup):
    """Finds a command in its module."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name])
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"chronik {__version__}")
        raise typer.Exit


@app.callback()
def _chronik(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Chronik, a Kafka-compatible streaming log."""
