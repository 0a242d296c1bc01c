"""Scripts: each line is a command, and what it led to stands below it, indented.

A line that begins with # is a comment. `pytest tests/scenarios --rewrite` writes what happens into
the scripts; read the diff.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[[str], list[str]]


def play(text: str, run: Run) -> str:
    """The script with what really happens."""
    lines = []
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"    {each}" for each in run(line)]
    return "\n".join(lines) + "\n"


def check_script(path: Path, run: Run, request: pytest.FixtureRequest) -> None:
    """The script says what happens, or is made to."""
    text = path.read_text()
    found = play(text, run)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(found)
    else:
        assert found == text
