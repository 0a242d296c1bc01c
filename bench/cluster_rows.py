"""The table of `bench.cluster`: what was measured, what was wanted."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One figure. Without a goal it is only told."""

    what: str
    value: float
    goal: float | None
    unit: str

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return "ok" if self.value <= self.goal else "MISSED"


class Rows:
    """Figures in the order in which they were measured; each is shown when it comes."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def add(self, what: str, value: float, goal: float | None = None, unit: str = "s") -> None:
        """A figure, which should be at most its goal."""
        row = Row(what, value, goal, unit)
        self._rows.append(row)
        print(_line(row), flush=True)

    def show(self) -> None:
        print("\n" + f"{'':58}{'measured':>12}{'goal':>12}")
        for row in self._rows:
            print(_line(row))

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self._rows]


def _line(row: Row) -> str:
    goal = "" if row.goal is None else f"<= {row.goal:g}"
    return f"{row.what + ', ' + row.unit:58}{row.value:12.3f}{goal:>12}  {row.verdict}".rstrip()
