"""Arguments, help and errors of the commands, and what they print of records."""

import json
import socket
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from chronik import __version__
from chronik.cli.commands import COMMANDS, app
from chronik.cli.consume import View
from chronik.cli.formats import Format
from chronik.model import TopicPartition
from chronik.protocol.records import Record


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses: bound, so that nobody else takes it, and not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"chronik {__version__}\n"


def test_help_says_a_sentence_for_each_command() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    lines = [line.split(None, 1) for line in result.output.partition("Commands:")[2].splitlines()]
    assert [line[0] for line in lines if line] == list(COMMANDS)
    assert all(line[1].rstrip().endswith((".", "...")) for line in lines if line)


HUGE = "100000000000000000000"  # fits into no field of any request


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nosuch"], "nosuch"),
        (["topics", "create"], "name"),
        (["topics", "create", "a", "--config", "x"], "'x' is not NAME=VALUE"),
        (["topics", "create", "a", "--partitions", "many"], "--partitions"),
        (["topics", "alter", "a"], "give --config, --delete-config or --partitions"),
        (["topics", "list", "--bootstrap", "nowhere"], "'nowhere' is not HOST:PORT"),
        (["produce", "a", "--acks", "2"], "'2' is not all, 1 or 0"),
        (["produce", "a", "--compression", "rar"], "none, gzip, snappy, lz4, zstd"),
        (["produce", "a", "--value", "x", "--tombstone"], "give one of --value"),
        (["produce", "a", "--header", "x"], "'x' is not NAME=VALUE"),
        (["consume", "a", "--tail", "--offset", "1"], "give one of --from-beginning"),
        (["consume", "a", "--from-time", "soon"], "'soon' is neither ISO 8601"),
        (["consume", "a", "--format", "xml"], "--format"),
        (["consume", "a", "--offset", HUGE], "'--offset'"),
        (["consume", "a", "--offset", f"-{HUGE}"], "'--offset'"),
        (["consume", "a", "--from-time", f"-{HUGE}d"], "is neither ISO 8601"),
        (["topics", "create", "a", "--partitions", "2147483648"], "'--partitions'"),
        (["topics", "create", "a", "--replication-factor", "32768"], "'--replication-factor'"),
        (["topics", "create", "a", "--timeout", "inf"], "'--timeout'"),
        (["topics", "alter", "a", "--partitions", "2147483648"], "'--partitions'"),
        (["cluster", "remove-node", "2147483648"], "less than or equal to 2147483647"),
        (["cluster", "transfer-leadership", "2147483648"], "less than or equal to 2147483647"),
    ],
)
def test_wrong_arguments_are_usage_errors(arguments: list[str], word: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert word in " ".join(result.output.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "list"],
        ["topics", "describe", "a"],
        ["topics", "delete", "a", "b"],
        ["cluster", "describe", "--json"],
        ["produce", "a", "--value", "x"],
        ["consume", "a"],
    ],
)
def test_an_unreachable_cluster_is_one_line(arguments: list[str], closed_port: int) -> None:
    address = f"127.0.0.1:{closed_port}"
    result = CliRunner().invoke(app, [*arguments, "--bootstrap", address])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"chronik: cannot reach {address}: connection refused\n"


def view(**shown: bool) -> View:
    parts = dict.fromkeys(("as_json", "keys", "headers", "timestamps"), False)
    return View(form=Format.TEXT, **parts | shown)


PLACE = TopicPartition("t", 3)
RECORD = Record(7, 1_500, b"k", None, (("h", b"x"), ("n", None)))


def test_records_as_text() -> None:
    assert view().line(PLACE, RECORD) == "null"
    everything = view(keys=True, headers=True, timestamps=True)
    assert everything.line(PLACE, RECORD) == "1970-01-01T00:00:01.500Z\th=x,n=null\tk\tnull"
    assert everything.line(PLACE, Record(0, -1, None, b"v")) == "-\t-\tnull\tv"


def test_records_as_json() -> None:
    assert json.loads(view(as_json=True).line(PLACE, RECORD)) == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": "1970-01-01T00:00:01.500Z",
        "key": "k",
        "value": None,
        "headers": [["h", "x"], ["n", None]],
    }
