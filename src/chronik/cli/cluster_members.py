"""`chronik cluster add-node`, `remove-node` and the like: who is in a cluster, leads it, rests.

Every change is committed by the cluster before its command ends, and can be asked for again.
"""

import asyncio
from enum import Enum
from typing import Annotated, Any, Final

import typer

from chronik.cli.cluster_moves import Throttle, drain, plan_drain
from chronik.cli.output import print_json
from chronik.cli.session import BOOTSTRAP_DEFAULT, TIMEOUT_S, Bootstrap, Json, Timeout, fail, run
from chronik.client.admin import Admin, Quorum
from chronik.client.cluster import Cluster
from chronik.config.definitions import INT_MAX
from chronik.protocol.messages.quorum import (
    MAINTENANCE_OFF,
    MAINTENANCE_ON,
    NO_NODE,
    REMOVE_NODE,
    REPLACE_NODE,
    TRANSFER_LEADERSHIP,
)

WAIT_POLL_S: Final = 0.2

NodeId = Annotated[int, typer.Argument(min=0, max=INT_MAX, metavar="ID", help="The node's number.")]
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Even if partitions have fewer replicas then, or their data nowhere else: it is lost.",
    ),
]


class Switch(Enum):
    """On or off."""

    ON = "on"
    OFF = "off"


def add_node(
    wait_s: Annotated[
        float,
        typer.Option("--wait", min=0, metavar="SECONDS", help="Wait so long for it to vote."),
    ] = 0.0,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show how to start a node that joins this cluster; with --wait, wait until it votes."""

    async def work(cluster: Cluster) -> tuple[Quorum, Quorum]:
        admin = Admin(cluster)
        before = await admin.describe_quorum()
        if not wait_s:
            return before, before
        if not as_json:
            typer.echo(_how_to_join(bootstrap, before))
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            now = await admin.describe_quorum()
            if voters(now) - voters(before) or asyncio.get_running_loop().time() > deadline:
                return before, now
            await asyncio.sleep(WAIT_POLL_S)

    before, now = run(bootstrap, timeout_s, work)
    added = sorted(voters(now) - voters(before))
    shown: dict[str, Any] = {
        "join": _address(bootstrap),
        "command": _how_to_join(bootstrap, before),
        "voters": sorted(voters(now)),
        "added": added,
    }
    if as_json:
        print_json(shown)
    elif not wait_s:
        typer.echo(shown["command"])
    elif added:
        typer.echo(f"node {added[0]} votes; voters are {_list(voters(now))}")
    if wait_s and not added:
        fail(f"no node has joined and caught up within {wait_s:g} s")


def _how_to_join(bootstrap: str, quorum: Quorum) -> str:
    return (
        f"chronik start --join {_address(bootstrap)} --data-dir DIR --secret SECRET\n"
        f"  SECRET is what the nodes were started with, or the content of the file `secret` in the "
        f"data directory of node {quorum.log.leader_id}"
    )


def _address(bootstrap: str) -> str:
    return bootstrap.split(",")[0]


def voters(quorum: Quorum) -> set[int]:
    """The ids of those that vote."""
    return {each.replica_id for each in quorum.log.current_voters}


def _list(ids: set[int]) -> str:
    return ", ".join(map(str, sorted(ids)))


def remove_node(
    node_id: NodeId,
    force: AcceptLoss = False,
    drains: Annotated[
        bool, typer.Option("--drain/--no-drain", help="First move what it holds to other nodes.")
    ] = True,
    throttle: Throttle = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Move what a node holds to others and take it out of the cluster, for good. It stops."""

    async def make_empty(cluster: Cluster) -> None:
        quorum = await Admin(cluster).describe_quorum()
        status = {node.node_id: node.status for node in quorum.nodes}
        if len(status) < 2 or node_id not in status:
            return  # Why it cannot be removed is told by whoever decides.
        await plan_drain(cluster, node_id, may_lose_replicas=force)
        # From here on nothing new is placed there.
        await Admin(cluster).change_cluster(MAINTENANCE_ON, node_id)
        await drain(cluster, node_id, throttle, may_lose_replicas=force)

    if drains:
        run(bootstrap, timeout_s, make_empty)
    _change(REMOVE_NODE, node_id, bootstrap, timeout_s, as_json, "removed node {}", force)


def replace_node(
    node_id: NodeId,
    force: AcceptLoss = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Say that a node's data directory is lost: under its number an empty one may join again."""
    told = "node {0} is free: start it again with its --node-id {0}, an empty data directory and "
    told += "--join (or its peers)"
    _change(REPLACE_NODE, node_id, bootstrap, timeout_s, as_json, told, force)


def transfer_leadership(
    node_id: Annotated[
        int | None,
        typer.Argument(
            min=0, max=INT_MAX, metavar="[ID]", help="Who shall lead; any other if not given."
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Let another node lead the cluster."""
    to = NO_NODE if node_id is None else node_id
    _change(TRANSFER_LEADERSHIP, to, bootstrap, timeout_s, as_json, "node {} leads")


def maintenance(
    switch: Annotated[Switch, typer.Argument(metavar="on|off", help="Begin or end it.")],
    node_id: NodeId,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Give a node no new partitions, and let others lead where they can; or end that."""
    is_on = switch is Switch.ON
    change = MAINTENANCE_ON if is_on else MAINTENANCE_OFF
    told = "node {} is in maintenance" if is_on else "node {} is in maintenance no more"
    _change(change, node_id, bootstrap, timeout_s, as_json, told)


def _change(
    change: str,
    node_id: int,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
    told: str,
    accepts_loss: bool = False,
) -> None:
    done = run(
        bootstrap,
        timeout_s,
        lambda cluster: Admin(cluster).change_cluster(change, node_id, accepts_loss=accepts_loss),
    )
    if as_json:
        print_json({"change": change, "node": done})
    else:
        typer.echo(told.format(done))
