"""`chronik cluster`: the nodes of a cluster."""

import typer

from chronik.cli.output import print_json, print_table
from chronik.cli.session import (
    BOOTSTRAP_DEFAULT,
    TIMEOUT_S,
    Bootstrap,
    Json,
    Timeout,
    command_app,
    run,
)
from chronik.client.admin import Admin

app = command_app("Show the cluster.")


@app.callback()
def _cluster() -> None:
    """Show the cluster."""


@app.command()
def describe(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show the cluster's id, its controller and its nodes."""
    found = run(bootstrap, timeout_s, lambda cluster: Admin(cluster).describe_cluster())
    nodes = sorted(found.brokers, key=lambda node: node.broker_id)
    if as_json:
        print_json(
            {
                "cluster_id": found.cluster_id,
                "controller": found.controller_id,
                "nodes": [
                    {
                        "id": node.broker_id,
                        "host": node.host,
                        "port": node.port,
                        "rack": node.rack,
                        "fenced": node.is_fenced,
                    }
                    for node in nodes
                ],
            }
        )
        return
    typer.echo(f"cluster {found.cluster_id}, controller {found.controller_id}")
    rows = [
        (
            node.broker_id,
            f"{node.host}:{node.port}",
            node.rack,
            "fenced" if node.is_fenced else "online",
        )
        for node in nodes
    ]
    print_table(("NODE", "ADDRESS", "RACK", "STATE"), rows)
