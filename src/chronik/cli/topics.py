"""`chronik topics`: list, create, describe, alter and delete topics."""

import base64
from typing import Annotated, Any

import typer

from chronik.cli.output import print_json, print_table, size_text
from chronik.cli.session import (
    BOOTSTRAP_DEFAULT,
    TIMEOUT_S,
    Bootstrap,
    Json,
    Timeout,
    command_app,
    fail_for_each,
    parse_pairs,
    run,
)
from chronik.client.admin import Admin, ConfigSource, Resource
from chronik.client.cluster import Cluster
from chronik.client.moves import moving
from chronik.client.offsets import EARLIEST, LATEST
from chronik.config.definitions import INT_MAX, SHORT_MAX
from chronik.model import TopicPartition
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.metadata import MetadataResponseTopic

app = command_app("List, create, describe, alter and delete topics.")

Name = Annotated[str, typer.Argument(help="The topic.")]
Names = Annotated[list[str], typer.Argument(help="The topics.")]
Configs = Annotated[
    list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A setting to set.")
]


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Show internal ones too.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the topics."""
    found = run(bootstrap, timeout_s, lambda cluster: Admin(cluster).topics())
    topics = [_summary(topic) for topic in found if internal or not topic.is_internal]
    if as_json:
        print_json(topics)
    else:
        rows = [(row["name"], row["partition_count"], row["replication_factor"]) for row in topics]
        print_table(("TOPIC", "PARTITIONS", "REPLICAS"), rows)


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int, typer.Option(min=-1, max=INT_MAX, help="How many; -1 for the cluster's default.")
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(min=-1, max=SHORT_MAX, help="Copies of each; -1 for the cluster's default."),
    ] = -1,
    config: Configs = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Create a topic."""
    configs = parse_pairs(config or (), "--config")
    result = run(
        bootstrap,
        timeout_s,
        lambda cluster: Admin(cluster).create_topic(
            name, partitions=partitions, replication_factor=replication_factor, configs=configs
        ),
    )
    if as_json:
        print_json(
            {
                "name": result.name,
                "id": _id_text(result.topic_id),
                "partition_count": result.num_partitions,
                "replication_factor": result.replication_factor,
            }
        )
    else:
        count, copies = result.num_partitions, result.replication_factor
        typer.echo(f"created {name}: partitions {count}, replication factor {copies}")


@app.command()
def describe(
    names: Names,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show partitions, leaders, offsets, sizes, and the settings that are not defaults."""
    described = run(bootstrap, timeout_s, lambda cluster: _describe(cluster, names))
    is_moving = any(row["adding"] or row["removing"] for t in described for row in t["partitions"])
    if as_json:
        print_json(described)
        return
    for topic in described:
        typer.echo(f"topic {topic['name']}, id {topic['id']}")
        settings = " ".join(f"{name}={value}" for name, value in topic["configs"].items())
        typer.echo(f"configs {settings or 'all default'}")
        columns = ["PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END", "SIZE"]
        columns += ["ADDING", "REMOVING"] if is_moving else []
        rows = [_partition_row(row)[: len(columns)] for row in topic["partitions"]]
        print_table(columns, rows)


@app.command()
def alter(
    name: Name,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A setting to put back to default.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, max=INT_MAX, help="Grow to this many.")
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Change settings of a topic, or let it grow."""
    sets, deletes = parse_pairs(config or (), "--config"), delete_config or []
    if not sets and not deletes and partitions is None:
        raise typer.BadParameter("give --config, --delete-config or --partitions")

    async def change(cluster: Cluster) -> None:
        admin = Admin(cluster)
        await admin.topics([name])  # One clear error if there is no such topic.
        if sets or deletes:
            await admin.alter_configs(Resource.TOPIC, name, sets=sets, deletes=deletes)
        if partitions is not None:
            await admin.create_partitions(name, partitions)

    run(bootstrap, timeout_s, change)
    if as_json:
        print_json({"name": name, "set": sets, "deleted": deletes, "partitions": partitions})
    else:
        typer.echo(f"altered {name}")


@app.command()
def delete(
    names: Names,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Delete topics and their data, without asking: all of them that can be."""
    unique = list(dict.fromkeys(names))
    found = run(bootstrap, timeout_s, lambda cluster: Admin(cluster).delete_topics(unique))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    deleted = [name for name in unique if found[name] is None]
    failed = {name: error for name, error in found.items() if error is not None}
    missing = [name for name, error in failed.items() if error.code is unknown]
    if as_json:
        codes = {name: each.code.name for name, each in failed.items() if name not in missing}
        print_json({"deleted": deleted, "missing": missing, "failed": codes})
    else:
        for name in deleted:
            typer.echo(f"deleted {name}")
    fail_for_each(failed.values())


def _summary(topic: MetadataResponseTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": _id_text(topic.topic_id),
        "partition_count": len(topic.partitions),
        "replication_factor": max((len(p.replica_nodes) for p in topic.partitions), default=0),
        "internal": topic.is_internal,
    }


async def _describe(cluster: Cluster, names: list[str]) -> list[dict[str, Any]]:
    admin = Admin(cluster)
    topics = await admin.topics(names)
    partitions = [
        TopicPartition(topic.name or "", found.partition_index)
        for topic in topics
        for found in topic.partitions
        if found.leader_id >= 0
    ]
    starts = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(partitions, LATEST))
    sizes = await _sizes(admin)
    moves = await moving(cluster)
    described = []
    for topic in topics:
        name = topic.name or ""
        configs = await admin.describe_configs(Resource.TOPIC, name)
        rows = []
        for found in sorted(topic.partitions, key=lambda found: found.partition_index):
            place = TopicPartition(name, found.partition_index)
            move = moves.get(place)
            rows.append(
                {
                    "partition": found.partition_index,
                    "leader": found.leader_id,
                    "leader_epoch": found.leader_epoch,
                    "replicas": list(found.replica_nodes),
                    "isr": list(found.isr_nodes),
                    "adding": list(move.adding_replicas) if move else [],
                    "removing": list(move.removing_replicas) if move else [],
                    "start_offset": starts.get(place),
                    "end_offset": ends.get(place),
                    "bytes": sizes.get((found.leader_id, place)),
                }
            )
        own = (
            entry for entry in configs if entry.config_source == ConfigSource.DYNAMIC_TOPIC_CONFIG
        )
        described.append(
            {
                **_summary(topic),
                "configs": {entry.name: entry.value for entry in own},
                "partitions": rows,
            }
        )
    return described


async def _sizes(admin: Admin) -> dict[tuple[int, TopicPartition], int]:
    return {
        (node_id, TopicPartition(topic.name, partition.partition_index)): partition.partition_size
        for node_id, directories in (await admin.log_dirs()).items()
        for directory in directories
        for topic in directory.topics
        for partition in topic.partitions
    }


def _partition_row(row: dict[str, Any]) -> tuple[str | int | None, ...]:
    return (
        row["partition"],
        row["leader"],
        ",".join(map(str, row["replicas"])),
        ",".join(map(str, row["isr"])),
        row["start_offset"],
        row["end_offset"],
        size_text(row["bytes"]),
        ",".join(map(str, row["adding"])) or None,
        ",".join(map(str, row["removing"])) or None,
    )


def _id_text(topic_id: bytes) -> str:
    """A topic id as Kafka's tools show it."""
    return base64.urlsafe_b64encode(topic_id).decode("ascii").rstrip("=")
