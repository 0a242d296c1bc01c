"""`chronik start`, as its help describes it; `node` does the work.

All options are text here: settings are checked where their variables and file keys are.
"""

from typing import Annotated

import typer

from chronik.cli import node
from chronik.cli.session import command_app

app = command_app()


@app.command()
def start(
    port: Annotated[
        str | None, typer.Option(metavar="PORT", help="Kafka port; 0 takes a free one. [9092]")
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Where to listen. [127.0.0.1]")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="How clients reach this node.")
    ] = None,
    http_port: Annotated[
        str | None, typer.Option(metavar="PORT", help="Metrics and health; -1 for none. [9644]")
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where data lives. [./chronik-data]")
    ] = None,
    node_id: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="This node's number. [1, or what a cluster gives it]"),
    ] = None,
    rack: Annotated[str | None, typer.Option(metavar="NAME", help="This node's rack.")] = None,
    durability: Annotated[
        str | None, typer.Option(metavar="fsync|replicated", help="What an ack means. [fsync]")
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(
            metavar="ID@HOST:KAFKA_PORT:INTERNAL_PORT,...",
            help="All nodes of a cluster, this one included.",
        ),
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What only the nodes of a cluster know."),
    ] = None,
    join: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Any node of the cluster that this one joins."),
    ] = None,
    internal: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where to listen for other nodes. [port + 100]"),
    ] = None,
    advertise_internal: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="How other nodes reach this node."),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error. [info]")
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE.toml", help="A file of settings.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A Kafka setting.")
    ] = None,
) -> None:
    """Run a node. Each option can also be a CHRONIK_* variable or a key in the file."""
    options = dict(locals())  # Each under the name of its setting, except these two.
    del options["config"], options["sets"]
    raise typer.Exit(node.start(node.Given(options, config, tuple(sets or ()))))
