"""What the controller gives back: what to log, and what to answer once it is committed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chronik.metadata.records import Record


@dataclass(frozen=True, slots=True)
class Decision:
    """The records are one entry of the log; without any, the response tells what already is."""

    records: Sequence[Record]
    response: Any = None
