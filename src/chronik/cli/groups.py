"""`chronik groups`: list and describe groups with their lag, set their offsets, delete them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from chronik.cli.formats import parse_time_ms
from chronik.cli.output import print_json, print_table
from chronik.cli.session import (
    BOOTSTRAP_DEFAULT,
    TIMEOUT_S,
    Bootstrap,
    Json,
    Timeout,
    command_app,
    fail_for_each,
    run,
)
from chronik.client.cluster import Cluster
from chronik.client.groups import Group, Groups, Member, Position
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.clock import SystemClock
from chronik.model import TopicPartition
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.groups import ListedGroup

app = command_app("List and describe groups, set their offsets, delete them.")

Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group.")]
SIMPLE = "simple"  # a group of offsets only: nobody ever joined it


@app.command("list")
def list_groups(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the groups."""
    found = run(bootstrap, timeout_s, lambda cluster: Groups(cluster).all())
    groups = [_summary(group) for group in found]
    if as_json:
        print_json(groups)
    else:
        rows = [(row["group"], row["type"], row["state"]) for row in groups]
        print_table(("GROUP", "TYPE", "STATE"), rows)


def _summary(group: ListedGroup) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "type": group.group_type.lower() or "classic",
        "protocol": group.protocol_type or SIMPLE,
        "state": group.group_state,
    }


@app.command()
def describe(
    name: Name,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show a group's members, how far it has read each partition, and its lag."""

    async def ask(cluster: Cluster) -> tuple[Group, list[Position]]:
        groups = Groups(cluster)
        return await groups.describe(name), await groups.positions(name)

    group, positions = run(bootstrap, timeout_s, ask)
    if as_json:
        print_json(_described(group, positions))
        return
    typer.echo(f"group {group.group_id}, type {group.kind}, state {group.state}")
    lags = [each.lag for each in positions]
    total = sum(lag for lag in lags if lag is not None)
    typer.echo(f"members {len(group.members)}, assignor {group.assignor or '-'}, lag {total}")
    columns = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "CLIENT", "HOST")
    print_table(columns, [_row(each) for each in positions])
    idle = [member for member in group.members if not member.partitions]
    for member in idle:
        typer.echo(f"without partitions: {_member_name(member)} ({member.client_id})")


def _row(position: Position) -> tuple[str | int | None, ...]:
    member = position.member
    return (
        *position.partition,
        position.committed_offset,
        position.end_offset,
        position.lag,
        None if member is None else _member_name(member),
        None if member is None else member.client_id,
        None if member is None else member.host,
    )


def _member_name(member: Member) -> str:
    return member.instance_id or member.member_id


def _described(group: Group, positions: Sequence[Position]) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "type": group.kind,
        "state": group.state,
        "assignor": group.assignor or None,
        "members": [
            {
                "id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [list(each) for each in member.partitions],
            }
            for member in group.members
        ],
        "offsets": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "committed": each.committed_offset,
                "end": each.end_offset,
                "lag": each.lag,
                "metadata": each.metadata,
                "member": None if each.member is None else each.member.member_id,
            }
            for each in positions
        ],
    }


@app.command("reset-offsets")
def reset_offsets(
    name: Name,
    topic: Annotated[
        list[str], typer.Option("--topic", metavar="TOPIC[:PARTITION,...]", help="Where.")
    ],
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the beginning.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, help="To this offset.")] = None,
    to_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="ISO 8601 (UTC), or -30s, -10m, -2h, -1d.")
    ] = None,
    shift_by: Annotated[int | None, typer.Option(help="So many on, or back.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Set where a group goes on; it must have no members meanwhile.

    An offset outside of a partition is taken to its nearest end.
    """
    chosen = [to_offset is not None, to_time is not None, shift_by is not None]
    if to_earliest + to_latest + sum(chosen) != 1:
        names = "--to-earliest, --to-latest, --to-offset, --to-time and --shift-by"
        raise typer.BadParameter(f"give one of {names}")
    time_ms = None if to_time is None else _time_ms(to_time)

    async def reset(cluster: Cluster) -> dict[TopicPartition, int]:
        groups = Groups(cluster)
        partitions = await _partitions(cluster, topic)
        if to_earliest or to_latest:
            wanted = EARLIEST if to_earliest else LATEST
            offsets = await list_offsets(cluster, dict.fromkeys(partitions, wanted))
        elif time_ms is not None:
            offsets = await _at_time(cluster, partitions, time_ms)
        else:
            offsets = await _at_offset(cluster, groups, name, partitions, to_offset, shift_by)
        if not dry_run:
            await groups.commit(name, offsets)
        return offsets

    offsets = run(bootstrap, timeout_s, reset)
    if as_json:
        rows = [
            {"topic": each.topic, "partition": each.partition, "offset": offset}
            for each, offset in sorted(offsets.items())
        ]
        print_json(rows)
    else:
        print_table(
            ("TOPIC", "PARTITION", "OFFSET"),
            [(*each, offset) for each, offset in sorted(offsets.items())],
        )


def _time_ms(text: str) -> int:
    try:
        return max(parse_time_ms(text, SystemClock().wall_ms()), 0)
    except (ValueError, OverflowError):
        message = f"{text!r} is neither ISO 8601 nor like -10m"
        raise typer.BadParameter(message, param_hint="--to-time") from None


async def _partitions(cluster: Cluster, given: Sequence[str]) -> list[TopicPartition]:
    """The partitions that TOPIC or TOPIC:1,2 names."""
    partitions = []
    for item in given:
        name, colon, listed = item.partition(":")
        known = [each.partition_index for each in (await cluster.topic(name)).partitions]
        try:
            wanted = [int(index) for index in listed.split(",")] if colon else known
        except ValueError:
            message = f"{item!r} is not TOPIC[:PARTITION,...]"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message) from None
        for index in wanted:
            if index not in known:
                message = f"{name} has no partition {index}, only {len(known)}"
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        partitions += [TopicPartition(name, index) for index in sorted(set(wanted))]
    return partitions


async def _at_time(
    cluster: Cluster, partitions: Sequence[TopicPartition], time_ms: int
) -> dict[TopicPartition, int]:
    found = await list_offsets(cluster, dict.fromkeys(partitions, time_ms))
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    return {each: offset if offset >= 0 else ends[each] for each, offset in found.items()}


async def _at_offset(
    cluster: Cluster,
    groups: Groups,
    name: str,
    partitions: Sequence[TopicPartition],
    to_offset: int | None,
    shift_by: int | None,
) -> dict[TopicPartition, int]:
    starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    committed: Mapping[TopicPartition, tuple[int, str | None]] = {}
    if shift_by is not None:
        committed = await groups.committed(name)
    offsets = {}
    for each in partitions:
        wanted = to_offset
        if shift_by is not None:
            if each not in committed:
                message = f"group {name} has no offset of {each} to shift"
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            wanted = committed[each][0] + shift_by
        assert wanted is not None
        offsets[each] = min(max(wanted, starts[each]), ends[each])
    return offsets


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP...", help="The groups.")],
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Delete groups without members, and their offsets: all of them that can be."""
    deleted: list[str] = []
    failed: dict[str, KafkaError] = {}

    async def remove(cluster: Cluster) -> None:
        groups = Groups(cluster)
        for name in dict.fromkeys(names):
            try:
                await groups.delete(name)
            except KafkaError as error:
                failed[name] = error
                continue
            deleted.append(name)
            if not as_json:
                typer.echo(f"deleted {name}")

    run(bootstrap, timeout_s, remove)
    if as_json:
        codes = {name: error.code.name for name, error in failed.items()}
        print_json({"deleted": deleted, "failed": codes})
    fail_for_each(failed.values())
