"""`chronik start` without typer, and that typer knows the same options."""

import subprocess
import sys

import pytest
import typer

from chronik.cli import node, start
from chronik.cli.node import Given, parse


def test_well_formed_options_are_read() -> None:
    assert parse(
        ["--port", "0", "--data-dir=x=y", "--set", "a=1", "--set=b=2", "--config", "f"]
    ) == (Given({"port": "0", "data_dir": "x=y"}, "f", ("a=1", "b=2")))
    assert parse([]) == Given()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--port"], ["9092"], ["--bogus", "1"], ["-p", "1"]]
)
def test_everything_else_is_left_to_typer(arguments: list[str]) -> None:
    assert parse(arguments) is None


def test_typer_declares_the_same_options() -> None:
    command = typer.main.get_command(start.app)
    declared = {option for parameter in command.params for option in parameter.opts} - {"--help"}
    named = {f"--{name.replace('_', '-')}" for name in node.SETTING_OPTIONS}
    assert declared == named | {"--set", "--config"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "x"], ("--port: 'x'", "65535")),
        (["--durability=none"], ("--durability: 'none'", "fsync or replicated")),
        (["--set", "num.partitions=-7"], ("--set:", "num.partitions")),
        (["--config", "/no/such/file"], ("--config: cannot read /no/such/file",)),
    ],
)
def test_a_wrong_setting_is_one_line(
    arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    given = parse(arguments)
    assert given is not None
    assert node.start(given) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("chronik: ")
    assert output.err.count("\n") == 1
    for word in words:
        assert word in output.err


def test_a_variable_is_named_when_it_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHRONIK_NODE_ID", "one")
    assert node.start(Given()) == 2
    assert "CHRONIK_NODE_ID: 'one' is not allowed" in capsys.readouterr().err


def test_without_assertions_nothing_starts() -> None:
    code = "import sys; from chronik.cli import node; sys.exit(node.start(node.Given()))"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("chronik: python -O is refused")
    assert done.stderr.count("\n") == 1


def test_start_loads_no_command_line_framework() -> None:
    code = (
        "import sys; sys.argv = ['chronik', 'start', '--port', 'x']\n"
        "from chronik.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as done: print(done.code, *{'typer', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "2\n"
