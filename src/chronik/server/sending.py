"""Writes the parts of responses to a peer, in order.

A part that lies in a file goes from the page cache to the socket without passing through this
process, if nothing is queued before it. What the socket has no room for is read and queued behind
what was sent, as any other bytes are.
"""

import asyncio
import contextlib
import os
from collections.abc import Sequence

from chronik.protocol.schema import Buffer, Part


def write_parts(transport: asyncio.Transport, parts: Sequence[Part]) -> None:
    """Write parts; raises OSError if a file does not have any more what was announced."""
    # The transport's own queue goes first; it also holds what was written in this turn.
    is_direct = transport.get_write_buffer_size() == 0
    queued: list[Buffer] = []
    for part in parts:
        if isinstance(part, (bytes, bytearray, memoryview)):
            queued.append(part)
            continue
        if is_direct:
            descriptor = transport.get_extra_info("socket").fileno()
            queued = _write_now(descriptor, queued)
            if not queued:
                part.send(descriptor)
        rest = part.rest()
        if len(rest):
            queued.append(rest)
            is_direct = False
    transport.writelines(queued)


def _write_now(descriptor: int, buffers: Sequence[Buffer]) -> list[Buffer]:
    """Give a socket what it has room for; what is left."""
    data = b"".join(buffers)
    written = 0
    # A peer that is gone is noticed by the transport.
    with contextlib.suppress(BlockingIOError, ConnectionError):
        written = os.write(descriptor, data) if data else 0
    return [data[written:]] if written < len(data) else []
