"""`chronik produce`: lines of stdin, or one value, become records."""

import asyncio
import io
import os
import stat
import sys
from collections.abc import AsyncIterator
from typing import Annotated, BinaryIO, Final

import typer

from chronik.cli.formats import Format, encode
from chronik.cli.output import print_json
from chronik.cli.session import (
    BOOTSTRAP_DEFAULT,
    TIMEOUT_S,
    Bootstrap,
    Json,
    Timeout,
    command_app,
    fail,
    parse_pairs,
    run,
)
from chronik.client.cluster import Cluster
from chronik.client.producer import ACKS_ALL, Delivery, Producer
from chronik.protocol.codecs import CODECS
from chronik.protocol.records import Headers

LINE_BYTES_MAX: Final = 16 * 1024 * 1024  # far more than a topic accepts by default
_ACKS: Final = {"all": ACKS_ALL, "-1": ACKS_ALL, "1": 1, "0": 0}

app = command_app()


@app.command()
def produce(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    value: Annotated[str | None, typer.Option(help="One value, instead of stdin's lines.")] = None,
    tombstone: Annotated[
        bool, typer.Option("--tombstone", help="One record without value.")
    ] = False,
    key: Annotated[str | None, typer.Option(help="The key of all records.")] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Ends the key at the start of each line.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of all records.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Where all records go.")] = None,
    acks: Annotated[str, typer.Option(metavar="all|1|0", help="Who must have it.")] = "all",
    compression: Annotated[str, typer.Option(metavar="|".join(CODECS), help="The codec.")] = "none",
    form: Annotated[Format, typer.Option("--format", help="How values are written.")] = Format.TEXT,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Write records: the lines of stdin, or one value."""
    if acks not in _ACKS:
        raise typer.BadParameter(f"{acks!r} is not all, 1 or 0", param_hint="--acks")
    if compression not in CODECS:
        allowed = ", ".join(CODECS)
        raise typer.BadParameter(
            f"{compression!r} is none of {allowed}", param_hint="--compression"
        )
    if (value is not None) + tombstone + (key_separator is not None) > 1 or key_separator == "":
        raise typer.BadParameter("give one of --value, --tombstone and --key-separator TEXT")
    if key is not None and key_separator is not None:
        raise typer.BadParameter("give --key or --key-separator")
    pairs = parse_pairs(header or (), "--header")
    headers = tuple((name, os.fsencode(text)) for name, text in pairs.items())
    work = _Work(topic, None if key is None else os.fsencode(key), headers, partition)

    async def write(cluster: Cluster) -> None:
        async with Producer(
            cluster,
            acks=_ACKS[acks],
            codec=CODECS[compression],
            delivery_timeout_s=timeout_s,
        ) as producer:
            if tombstone:
                await work.send(producer, None)
            elif value is not None:
                await work.send(producer, _encode(os.fsencode(value), form, "--value"))
            else:
                separator = None if key_separator is None else os.fsencode(key_separator)
                await work.send_lines(producer, form, separator)
            await producer.flush()
        await work.report(as_json)

    run(bootstrap, timeout_s, write)


class _Work:
    """What all records have in common, and what became of them: by partition, first and last."""

    def __init__(
        self, topic: str, key: bytes | None, headers: Headers, partition: int | None
    ) -> None:
        self._topic = topic
        self._key = key
        self._headers = headers
        self._partition = partition
        self._written: dict[int, tuple[int, Delivery, Delivery]] = {}

    async def send(self, producer: Producer, value: bytes | None, key: bytes | None = None) -> None:
        last = await producer.send(
            self._topic,
            value,
            key=self._key if key is None else key,
            headers=self._headers,
            partition=self._partition,
        )
        place = last.partition.partition
        count, first, _ = self._written.get(place, (0, last, last))
        self._written[place] = (count + 1, first, last)

    async def send_lines(self, producer: Producer, form: Format, separator: bytes | None) -> None:
        number = 0
        async for line in _lines(sys.stdin.buffer):
            number += 1
            text, key = line.rstrip(b"\n"), None
            if separator is not None:
                key, found, text = text.partition(separator)
                if not found:
                    fail(f"line {number}: there is no {separator.decode()!r} after a key")
            await self.send(producer, _encode(text, form, f"line {number}"), key)

    async def report(self, as_json: bool) -> None:
        partitions = []
        for partition, (count, first, last) in sorted(self._written.items()):
            places = (await first).offset, (await last).offset
            start, end = (None if offset < 0 else offset for offset in places)
            partitions.append(
                {
                    "partition": partition,
                    "records": count,
                    "first_offset": start,
                    "last_offset": end,
                }
            )
        total = sum(count for count, _, _ in self._written.values())
        if as_json:
            print_json({"topic": self._topic, "records": total, "partitions": partitions})
            return
        typer.echo(f"wrote {total} record{'' if total == 1 else 's'} to {self._topic}")
        for row in partitions:
            if row["first_offset"] is not None:
                start, end = row["first_offset"], row["last_offset"]
                offsets = f"offset {start}" if start == end else f"offsets {start} to {end}"
                typer.echo(f"  partition {row['partition']}, {offsets}")


def _encode(text: bytes, form: Format, place: str) -> bytes:
    try:
        return encode(text, form)
    except ValueError as error:
        fail(f"{place} is not {form.value}: {error}")


async def _lines(stream: BinaryIO) -> AsyncIterator[bytes]:
    """The lines of stdin. The loop goes on while a person or a pipe is silent."""
    if not _can_wait(stream):
        for line in stream:
            yield line
        return
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    # A terminal is shared with the shell, which must find it blocking as it was.
    shared = os.dup(stream.fileno())
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stream)
    try:
        while line := await reader.readline():
            yield line
    except ValueError:
        fail(f"a line is longer than {LINE_BYTES_MAX} bytes")
    finally:
        os.set_blocking(shared, True)
        os.close(shared)


def _can_wait(stream: BinaryIO) -> bool:
    """Whether the loop can wait for input: on a terminal, a pipe or a socket, not on a file."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, io.UnsupportedOperation):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stream.isatty()
