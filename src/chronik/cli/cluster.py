"""`chronik cluster`: the nodes of a cluster, and a whole one on this machine."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import typer

from chronik.cli import cluster_health, cluster_members, cluster_moves, local_cluster
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
from chronik.client.admin import Admin, Quorum
from chronik.client.cluster import Cluster
from chronik.client.link import ConnectionFailed
from chronik.client.moves import Copying, copying
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.cluster import DescribeClusterBroker, DescribeClusterResponse

app = command_app("Show a cluster, or run one on this machine.")
app.command()(local_cluster.up)
app.command()(local_cluster.down)
for change in (
    cluster_members.add_node,
    cluster_members.remove_node,
    cluster_members.replace_node,
    cluster_members.transfer_leadership,
    cluster_members.maintenance,
    cluster_moves.rebalance,
):
    app.command()(change)


@app.command()
def brokers(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the brokers that serve clients."""
    found = run(bootstrap, timeout_s, lambda cluster: Admin(cluster).describe_cluster())
    ids = sorted(node.broker_id for node in found.brokers if not node.is_fenced)
    if as_json:
        print_json({"brokers": ids})
    else:
        typer.echo(f"Brokers: {', '.join(map(str, ids))}")


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


@dataclass(frozen=True, slots=True)
class Answers:
    """What the nodes said, each for itself; for one that did not, why."""

    cluster: DescribeClusterResponse
    quorums: Mapping[int, Quorum]
    failures: Mapping[int, str]
    moves: Sequence[Copying] = ()

    @property
    def newest(self) -> Quorum | None:
        """The leader's word or, if nobody leads, that of the highest term."""
        return max(
            self.quorums.values(),
            key=lambda each: (each.is_leaders, each.log.leader_epoch, each.log.high_watermark),
            default=None,
        )


@app.command()
def status(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show who leads, in which term, and how far each node is. Exit code 1 if nobody leads."""
    answers = run(bootstrap, timeout_s, _ask_all)
    shown = summary(answers)
    if as_json:
        print_json(shown)
    else:
        _print_status(shown)
    if shown["leader"] is None:
        raise typer.Exit(1)


async def _ask_all(cluster: Cluster) -> Answers:
    admin = Admin(cluster)
    described = await admin.describe_cluster()
    quorums: dict[int, Quorum] = {}
    failures: dict[int, str] = {}

    async def ask(node_id: int) -> None:
        try:
            quorums[node_id] = await admin.quorum_at(node_id)
        except ConnectionFailed as error:
            failures[node_id] = error.reason
        except KafkaError as error:
            failures[node_id] = str(error)

    await asyncio.gather(*map(ask, cluster.brokers))
    answers = Answers(described, quorums, failures)
    counts = answers.newest.counts if answers.newest else None
    if counts is None or not counts.moving_count:
        return answers
    try:
        return replace(answers, moves=await copying(cluster))
    except (ConnectionFailed, KafkaError):
        return answers  # Who knows of moves does not answer; the rest is worth telling.


def summary(answers: Answers) -> dict[str, Any]:
    """The status of the cluster, as it is printed in JSON."""
    newest = answers.newest
    is_led = newest is not None and newest.is_leaders
    voters = [each.replica_id for each in newest.log.current_voters] if newest else []
    return {
        "cluster_id": answers.cluster.cluster_id,
        "leader": newest.log.leader_id if newest and is_led else None,
        "term": newest.log.leader_epoch if newest else None,
        "commit_index": newest.log.high_watermark if newest else None,
        "applied_index": newest.log.applied_index if newest else None,
        "lease": newest.log.has_lease if newest else False,
        "reason": None if is_led else _why_nobody_leads(answers, voters),
        "voters": voters,
        "partitions": cluster_health.partition_counts(newest.counts if newest else None),
        "reassignments": cluster_health.reassignments(answers.moves),
        "leader_skew": cluster_health.leader_skew(newest.nodes) if newest else None,
        "nodes": [_node(answers, node_id) for node_id in _node_ids(answers, newest)],
    }


def _why_nobody_leads(answers: Answers, voters: Sequence[int]) -> str:
    silent = [each for each in voters if each not in answers.quorums]
    needed = len(voters) // 2 + 1
    if len(voters) - len(silent) >= needed:
        return "an election is under way"
    names = ", ".join(map(str, silent))
    return f"{len(voters) - len(silent)} of {len(voters)} voters answer and {needed} are needed" + (
        f": start node {names}" if silent else ""
    )


def _node_ids(answers: Answers, newest: Quorum | None) -> list[int]:
    found = {node.broker_id for node in answers.cluster.brokers}
    if newest is not None:
        found |= {node.node_id for node in newest.nodes}
        found |= {each.replica_id for each in newest.log.current_voters}
        found |= {each.replica_id for each in newest.log.observers}
    return sorted(found)


def _node(answers: Answers, node_id: int) -> dict[str, Any]:
    own = answers.quorums.get(node_id)
    newest = answers.newest
    described = {each.node_id: each for each in newest.nodes} if newest else {}
    broker = described.get(node_id)
    lag, heard_ms = _seen_by_leader(newest, node_id)
    return {
        "id": node_id,
        "address": _address(answers, node_id),
        "status": _status(answers, node_id),
        "role": _role(newest, node_id),
        "term": own.log.leader_epoch if own else None,
        "commit_index": own.log.high_watermark if own else None,
        "applied_index": own.log.applied_index if own else None,
        "lag": lag,
        "last_heard_ms": heard_ms,
        "leaders": broker.leader_count if broker else 0,
        "replicas": broker.replica_count if broker else 0,
        "behind": cluster_health.follower_lag(answers.quorums.values(), node_id),
        "error": answers.failures.get(node_id),
    }


def _role(newest: Quorum | None, node_id: int) -> str | None:
    if newest is None:
        return None
    if newest.is_leaders and newest.log.leader_id == node_id:
        return "leader"
    if any(each.replica_id == node_id for each in newest.log.current_voters):
        return "voter"
    return "learner" if any(each.replica_id == node_id for each in newest.log.observers) else None


def _seen_by_leader(newest: Quorum | None, node_id: int) -> tuple[int | None, int | None]:
    """How many entries a node lacks, and when it was last heard of, in wall time."""
    if newest is None or not newest.is_leaders:
        return None, None
    members = {
        each.replica_id: each for each in (*newest.log.current_voters, *newest.log.observers)
    }
    member, leader = members.get(node_id), members.get(newest.log.leader_id)
    if member is None or leader is None or member.log_end_offset < 0:
        return None, None
    heard_ms = member.last_fetch_timestamp
    return leader.log_end_offset - member.log_end_offset, heard_ms if heard_ms >= 0 else None


def _broker(answers: Answers, node_id: int) -> DescribeClusterBroker | None:
    found = (node for node in answers.cluster.brokers if node.broker_id == node_id)
    return next(found, None)


def _address(answers: Answers, node_id: int) -> str | None:
    broker = _broker(answers, node_id)
    if broker is not None:
        return f"{broker.host}:{broker.port}"
    for node in answers.newest.nodes if answers.newest else ():
        if node.node_id == node_id and node.listeners:
            return f"{node.listeners[0].host}:{node.listeners[0].port}"
    return None


def _status(answers: Answers, node_id: int) -> str:
    """The broker's committed status, unless the node itself does not answer."""
    if node_id in answers.failures:
        return "silent"
    for node in answers.newest.nodes if answers.newest else ():
        if node.node_id == node_id and node.status:
            return node.status
    broker = _broker(answers, node_id)
    if broker is None:
        return "unregistered"
    return "offline" if broker.is_fenced else "online"


def _print_status(shown: Mapping[str, Any]) -> None:
    leader = shown["leader"]
    head = f"cluster {shown['cluster_id']}, "
    head += f"no leader ({shown['reason']})" if leader is None else f"leader {leader}"
    if shown["term"] is not None:
        head += f", term {shown['term']}, commit index {shown['commit_index']}"
        head += f", applied index {shown['applied_index']}"
        head += ", lease held" if shown["lease"] else ", no lease"
    typer.echo(head)
    for line in cluster_health.lines(shown):
        typer.echo(line)
    names = ("id", "address", "status", "role", "term", "commit_index", "applied_index", "lag")
    columns = ("NODE", "ADDRESS", "STATUS", "ROLE", "TERM", "COMMIT", "APPLIED", "LAG")
    rows = [
        [
            *(node[name] for name in names),
            node["leaders"],
            node["replicas"],
            node["behind"]["records_total"],
        ]
        for node in shown["nodes"]
    ]
    print_table((*columns, "LEADS", "HOLDS", "BEHIND"), rows)
