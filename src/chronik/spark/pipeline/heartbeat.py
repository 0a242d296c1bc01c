"""A word from the running pipeline, in the warehouse, for `chronik pipeline status`.

The tables say what was committed; only the pipeline knows what went wrong. It is told here after
every round: nothing depends on it, and losing it loses nothing.
"""

import json
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from chronik.spark.lake.warehouse import Warehouse

if TYPE_CHECKING:
    from chronik.spark.pipeline.topic import Landed

PATH: Final = "_chronik/pipeline.json"


def write_heartbeat(
    warehouse: Warehouse,
    now_ms: int,
    number: int,
    landed: "Mapping[str, Landed]",
    errors: Mapping[str, str],
) -> None:
    """Say that round `number` is over, and what went wrong in it."""
    word = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "updated_ms": now_ms,
        "round": number,
        "topics": sorted(landed),
        "errors": dict(errors),
    }
    warehouse.storage.write(PATH, json.dumps(word).encode())


def read_heartbeat(warehouse: Warehouse) -> dict[str, Any] | None:
    """The last word, or None if no pipeline has ever run here."""
    try:
        found: dict[str, Any] = json.loads(warehouse.storage.read(PATH))
    except (FileNotFoundError, ValueError):
        return None
    return found
