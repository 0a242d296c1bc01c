"""What all commands share: their common options, one cluster to talk to, one line for an error.

Exit codes: 0 done, 1 it could not be done, 2 the arguments are wrong, 130 interrupted.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Final, NoReturn, TypeVar

import typer

from chronik.client.cluster import Cluster
from chronik.client.link import ConnectionFailed, parse_bootstrap
from chronik.protocol.errors import KafkaError, ProtocolError

T = TypeVar("T")

TIMEOUT_S: Final = 10.0
TIMEOUT_S_MAX: Final = 86_400.0  # a day; requests have room for 24 of them in milliseconds
EXIT_INTERRUPTED: Final = 130  # what shells report for a process that SIGINT ended

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="CHRONIK_BOOTSTRAP",
        metavar="HOST:PORT[,...]",
        help="A node of the cluster, or several.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.1,
        max=TIMEOUT_S_MAX,
        metavar="SECONDS",
        help="Give up after this time.",
    ),
]
BOOTSTRAP_DEFAULT: Final = "localhost:9092"


def command_app(summary: str | None = None) -> typer.Typer:
    """An app for one command, or with a summary for a group of them."""
    return typer.Typer(
        help=summary,
        no_args_is_help=summary is not None,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def fail(message: str) -> NoReturn:
    """End with one line on stderr."""
    typer.echo(f"chronik: {message}", err=True)
    raise typer.Exit(1)


def told(error: KafkaError) -> str:
    """A refusal in a person's words, with Kafka's name for it."""
    return f"{error.message} ({error.code.name})" if error.message else error.code.name


def fail_for_each(errors: Iterable[KafkaError]) -> None:
    """End with a line for each on stderr; without any go on."""
    lines = [f"chronik: {told(error)}" for error in errors]
    if lines:
        typer.echo("\n".join(lines), err=True)
        raise typer.Exit(1)


def run(
    bootstrap: str,
    timeout_s: float,
    work: Callable[[Cluster], Awaitable[T]],
    *,
    interrupt_is_end: bool = False,
) -> T:
    """Do the work with a cluster; whatever goes wrong is one line and exit code 1."""
    try:
        addresses = parse_bootstrap(bootstrap)
    except ValueError:
        raise typer.BadParameter(
            f"{bootstrap!r} is not HOST:PORT[,...]", param_hint="--bootstrap"
        ) from None

    async def connected() -> T:
        async with Cluster(addresses, client_id="chronik-cli", timeout_s=timeout_s) as cluster:
            return await work(cluster)

    try:
        return asyncio.run(connected())
    except ConnectionFailed as error:
        fail(f"cannot reach {error}")
    except KafkaError as error:
        fail(told(error))
    except ProtocolError as error:
        fail(str(error))
    except BrokenPipeError:
        # Whoever read our output has seen enough. Nothing more may be flushed into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None
    except KeyboardInterrupt:
        raise typer.Exit(0 if interrupt_is_end else EXIT_INTERRUPTED) from None


def parse_pairs(items: Iterable[str], option: str) -> dict[str, str]:
    """NAME=VALUE items as a dict; a wrong one is a usage error."""
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{item!r} is not NAME=VALUE", param_hint=option)
        pairs[name] = value
    return pairs
