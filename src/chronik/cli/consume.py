"""`chronik consume`: records on stdout, a line each."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from chronik.cli.formats import Format, decode, parse_time_ms, show, time_text
from chronik.cli.session import BOOTSTRAP_DEFAULT, TIMEOUT_S, Bootstrap, Json, command_app, run
from chronik.client.cluster import Cluster
from chronik.client.consumer import Consumer
from chronik.client.group_consumer import GroupConsumer
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.clock import SystemClock
from chronik.config.definitions import LONG_MAX
from chronik.model import TopicPartition
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Record

app = command_app()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Where to begin: at a ListOffsets timestamp, or at an offset (negative: before the end)."""

    timestamp: int = LATEST
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What of a record is shown, and how."""

    form: Format
    as_json: bool
    keys: bool
    headers: bool
    timestamps: bool

    def line(self, partition: TopicPartition, record: Record) -> str:
        if self.as_json:
            return json.dumps(self._object(partition, record), ensure_ascii=False)
        parts = []
        if self.timestamps:
            parts.append(time_text(record.timestamp) or "-")
        if self.headers:
            shown = (f"{name}={show(value, Format.TEXT)}" for name, value in record.headers)
            parts.append(",".join(shown) or "-")
        if self.keys:
            parts.append(show(record.key, self.form))
        parts.append(show(record.value, self.form))
        return "\t".join(parts)

    def _object(self, partition: TopicPartition, record: Record) -> dict[str, Any]:
        return {
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": record.offset,
            "timestamp": time_text(record.timestamp),
            "key": decode(record.key, self.form),
            "value": decode(record.value, self.form),
            "headers": [[name, decode(value, Format.TEXT)] for name, value in record.headers],
        }


@app.command()
def consume(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Begin with the oldest record.")
    ] = False,
    tail: Annotated[bool, typer.Option("--tail", help="Only new records (the default).")] = False,
    offset: Annotated[
        int | None,
        typer.Option(
            min=-LONG_MAX, max=LONG_MAX, help="Begin at this offset; -10: with the last ten."
        ),
    ] = None,
    from_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="ISO 8601 (UTC), or -30s, -10m, -2h, -1d.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Only this partition; may be repeated.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Share the topic with the members of this group, and commit."),
    ] = None,
    read_committed: Annotated[
        bool, typer.Option("--read-committed", help="Only what transactions have committed.")
    ] = False,
    max_messages: Annotated[int | None, typer.Option(min=1, help="Stop after so many.")] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", help="Stop where the topic ends now.")
    ] = False,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Stop when idle for so long."),
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Show keys.")] = False,
    headers: Annotated[bool, typer.Option("--headers", help="Show headers.")] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Show timestamps.")] = False,
    form: Annotated[Format, typer.Option("--format", help="How bytes are shown.")] = Format.TEXT,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> None:
    """Read records: new ones, or from the beginning, an offset or a time on."""
    if from_beginning + tail + (offset is not None) + (from_time is not None) > 1:
        raise typer.BadParameter("give one of --from-beginning, --tail, --offset and --from-time")
    if group is not None and (partition or exit_at_end or offset is not None or from_time):
        raise typer.BadParameter(
            "a group knows its partitions and offsets: only --from-beginning goes with --group"
        )
    start = _start(from_beginning, offset, from_time)
    view = View(form=form, as_json=as_json, keys=keys, headers=headers, timestamps=timestamps)

    async def read(cluster: Cluster) -> None:
        consumer: Consumer | GroupConsumer
        if group is not None:
            await cluster.topic(topic)  # A misspelt name is an error, and not a long wait.
            consumer = GroupConsumer(
                cluster, group, [topic], reset=start.timestamp, read_committed=read_committed
            )
        else:
            consumer = await _consumer(
                cluster, topic, partition or (), start, exit_at_end, read_committed
            )
        async with consumer:
            await _print(consumer, view, max_messages, timeout_s)

    run(bootstrap, TIMEOUT_S, read, interrupt_is_end=True)


def _start(from_beginning: bool, offset: int | None, from_time: str | None) -> _Start:
    if from_beginning:
        return _Start(timestamp=EARLIEST)
    if from_time is None:
        return _Start(offset=offset)
    try:
        return _Start(timestamp=max(parse_time_ms(from_time, SystemClock().wall_ms()), 0))
    except (ValueError, OverflowError):
        message = f"{from_time!r} is neither ISO 8601 nor like -10m"
        raise typer.BadParameter(message, param_hint="--from-time") from None


async def _consumer(
    cluster: Cluster,
    topic: str,
    only: Sequence[int],
    start: _Start,
    exit_at_end: bool,
    read_committed: bool,
) -> Consumer:
    known = sorted(found.partition_index for found in (await cluster.topic(topic)).partitions)
    wanted = sorted(set(only)) or known
    for index in wanted:
        if index not in known:
            message = f"{topic} has no partition {index}, only {len(known)}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    partitions = [TopicPartition(topic, index) for index in wanted]
    latest = dict.fromkeys(partitions, LATEST)
    ends = await list_offsets(cluster, latest, read_committed=read_committed)
    positions = dict(ends)
    if start.offset is not None:
        starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
        for partition, end in ends.items():
            chosen = (
                start.offset if start.offset >= 0 else max(end + start.offset, starts[partition])
            )
            positions[partition] = chosen
    elif start.timestamp != LATEST:
        found = await list_offsets(cluster, dict.fromkeys(partitions, start.timestamp))
        positions |= {partition: offset for partition, offset in found.items() if offset >= 0}
    # An explicit offset that is not there is an error; elsewhere retention may have been faster.
    reset = None if start.offset is not None and start.offset >= 0 else EARLIEST
    return Consumer(
        cluster,
        positions,
        ends=ends if exit_at_end else None,
        reset=reset,
        read_committed=read_committed,
    )


async def _print(
    consumer: Consumer | GroupConsumer, view: View, max_messages: int | None, idle_s: float | None
) -> None:
    left = max_messages
    while True:
        try:
            async with asyncio.timeout(idle_s):
                chunks = await consumer.poll()
        except TimeoutError:
            return
        shown = [(chunk.partition, record) for chunk in chunks for record in chunk.records]
        if not shown:
            return
        typer.echo("\n".join(view.line(*each) for each in shown[:left]))
        if isinstance(consumer, GroupConsumer):
            for place, record in shown[:left]:
                consumer.done(place, record.offset + 1)
            await consumer.commit()
        if left is not None:
            left -= len(shown)
            if left <= 0:
                return
