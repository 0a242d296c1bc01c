"""Scripted lives of a Raft group: commands, what happened, and everybody's state, in text.

A script is lines of commands; what each led to follows it, indented. `pytest tests/scenarios
--rewrite` writes what really happens into the scripts: read the diff. Time stands still except in
`wait`, and messages move only in `stabilize` and `deliver`. A line that begins with # is a comment.

    group N [VOTERS]       N nodes, of which the first VOTERS are members
    campaign N             the patience of a node ends, and nobody keeps a promise
    hurry N                the patience of a node ends
    elect N                the same, until it leads and all is quiet
    propose N DATA         a command
    members N V,V [L,L]    a configuration: voters and learners
    transfer N TO          hand leadership over
    read N NAME            a linearizable read
    compact N              a snapshot, and the log before it is forgotten
    stabilize              save and deliver until nothing moves
    deliver N              what is on its way to one node, and what it answers stays on its way
    cut A B / heal         no messages between two, either way
    crash N / start N      unsaved entries are lost
    wait MS                time passes in steps of 25 ms, and everything moves
    status                 a line for each node
    log N                  the entries of a node, as term:data
"""

from pathlib import Path

import pytest
from raft_script import Script

SCRIPTS = sorted((Path(__file__).parent / "raft").glob("*.txt"))


def play(text):
    """The script with what really happens."""
    script = Script()
    lines = []
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"    {each}" for each in script.run(line)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path, request):
    text = path.read_text()
    found = play(text)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(found)
    else:
        assert found == text


def test_there_are_scripts():
    assert len(SCRIPTS) >= 10
