"""`chronik storage` on a small data directory."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chronik.cli.commands import app
from chronik.protocol.records import Record, build_batch
from chronik.storage.disk import FileDisk

SEGMENT = "00000000000000000000.log"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "node.json").write_text("{}")
    (tmp_path / "__chronik_metadata").mkdir()
    for topic in ("a.b", "a"):
        for partition in (0, 10):
            log = tmp_path / "topics" / f"{topic}.id" / str(partition)
            log.mkdir(parents=True)
            batches = [build_batch([Record(n, 1, None, b"v")], base_offset=n) for n in range(3)]
            (log / SEGMENT).write_bytes(b"".join(batches))
    return tmp_path


def run(*arguments: object) -> tuple[int, Any, str]:
    result = CliRunner().invoke(app, ["storage", *map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout or "null"), result.stderr


def damage(data_dir: Path) -> Path:
    """Flip a bit in the second of three batches."""
    path = data_dir / "topics" / "a.b.id" / "0" / SEGMENT
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


def test_good_logs(data_dir: Path) -> None:
    code, reports, _ = run("check", data_dir)
    assert code == 0
    assert [report["directory"].removeprefix(f"{data_dir}/") for report in reports] == [
        "__chronik_metadata",
        "topics/a.b.id/0",
        "topics/a.b.id/10",
        "topics/a.id/0",
        "topics/a.id/10",
    ]
    assert [report["batch_count"] for report in reports] == [0, 3, 3, 3, 3]


def test_one_topic_and_one_partition(data_dir: Path) -> None:
    _, reports, _ = run("check", data_dir, "--topic", "a", "--partition", "10")
    assert [report["directory"] for report in reports] == [f"{data_dir}/topics/a.id/10"]
    code, _, error = run("check", data_dir, "--topic", "c")
    assert (code, error) == (1, f"chronik: {data_dir} has no such partition\n")


def test_damage_is_found_and_salvaged(data_dir: Path) -> None:
    path = damage(data_dir)
    before = path.read_bytes()
    code, reports, error = run("check", data_dir, "--topic", "a.b")
    assert code == 1
    assert error.startswith("chronik: 1 of 2 logs are damaged")
    assert [report["damaged"] for report in reports] == [True, False]
    assert reports[0]["findings"][0]["problem"] == "corruption"
    assert path.read_bytes() == before
    code, reports, _ = run("salvage", data_dir)
    assert code == 0
    assert (path.parent / "salvage-1" / SEGMENT).read_bytes() == before
    assert run("check", data_dir)[0] == 0


def test_the_text_names_what_is_lost(data_dir: Path) -> None:
    path = damage(data_dir)
    result = CliRunner().invoke(app, ["storage", "salvage", str(data_dir)])
    assert f"{path}: corruption at byte" in result.stdout
    assert "offsets 1 to 1" in result.stdout
    assert "salvaged" in result.stdout


def test_a_running_node_is_left_alone(data_dir: Path) -> None:
    disk = FileDisk()
    disk.lock(f"{data_dir}/lock")
    try:
        code, _, error = run("salvage", data_dir)
    finally:
        disk.close()
    assert code == 1
    assert "is in use by process" in error
    assert error.count("\n") == 1


def test_any_directory_is_not_a_node(tmp_path: Path) -> None:
    code, _, error = run("check", tmp_path)
    assert (code, error.count("\n")) == (1, 1)
    assert "is no data directory of a node" in error
    assert list(tmp_path.iterdir()) == []
