"""The pages are true: generated ones are current, links lead somewhere, and commands work.

A fenced block of the README that follows `<!-- tested -->` is run as it stands, with only the
addresses put in place: `sh` by bash, `python` by this interpreter. `<!-- tested: NAME -->` runs it
in the environment of that client (scripts/clients/setup.py), or as a test file for `pytest`. Each
such block has a row in `TOLD`: some words that name it, and what it must print.
"""

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from chronik.cli import node
from chronik.config.settings import resolve
from chronik.testing import Broker

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "chronik"
README = ROOT / "README.md"
ARCHITECTURE = ROOT / "docs" / "ARCHITECTURE.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK_SECONDS_MAX = 120  # several JVMs after each other, on a busy machine

TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-transactions.sh": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
}

TOLD = {
    "topics create orders": (
        "created orders: partitions 3",
        "wrote 3 records to orders",
        "alice\tbook\n",
        "bob\tpen\n",
        "deleted orders",
    ),
    "topics create prices": (
        '"key": "pen", "value": "1.20", "headers": [["source", "shop"]]',
        "Z\tsource=shop\t1.20\n",
        "altered prices",
        '"partition_count": 2',
        "online",
    ),
    "--topic shipments": ("Created topic shipments", "PartitionCount: 2", "shipments:0:"),
    "topics create parcels": (
        "wrote 10 records to parcels",
        "group depot, type consumer, state Empty",
        "lag 6",
        "deleted depot",
    ),
    "--topic letters": ("letter 1\nletter 2\n", "readers"),
    '"payments"': ("0 alice payment 0\n", "2 alice payment 2\n"),
    '"visits"': ("0 alice visit 0\n", "2 alice visit 2\n"),
    '"clicks"': ("0 click 0\n", "2 click 2\n"),
    "with Broker(": ("[b'book']",),
    "def test_orders_are_written": ("1 passed",),
}


class Block(NamedTuple):
    """A fenced block that is run."""

    where: str  # the name after `tested:`, or empty
    language: str
    text: str

    @property
    def told(self) -> tuple[str, ...]:
        return next(told for words, told in TOLD.items() if words in self.text)


def blocks() -> list[Block]:
    found = re.findall(
        r"^<!-- tested(?:: ([\w-]+))? -->\n```(\w+)\n(.*?)^```$", README.read_text(), re.M | re.S
    )
    return [Block(*parts) for parts in found]


def test_every_tested_block_says_what_it_prints() -> None:
    named = [[words for words in TOLD if words in block.text] for block in blocks()]
    assert sorted(named) == sorted([words] for words in TOLD)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """On disk, as `make run` has it."""
    with Broker(data_dir=str(tmp_path_factory.mktemp("data"))) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(), ids=lambda block: f"{block.language}-{block.where}")
def test_readme(block: Block, broker: Broker, tmp_path: Path) -> None:
    text = block.text.replace("localhost:9092", broker.bootstrap)
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("CHRONIK_", "PYTHON"))}
    variables["CHRONIK_BOOTSTRAP"] = broker.bootstrap
    variables["PATH"] = f"{Path(sys.executable).parent}:{tmp_path}:{variables['PATH']}"
    done = subprocess.run(
        command(block.where, block.language, text, tmp_path),
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=BLOCK_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in block.told:
        assert words in done.stdout, done.stdout + done.stderr


def command(where: str, language: str, text: str, home: Path) -> list[str]:
    """What runs a block; files that it needs are put into `home`."""
    if language == "sh":
        if where == "kafka-tools":
            write_tools(home, environment(where))
        return ["bash", "-euo", "pipefail", "-c", text]
    assert language == "python"
    if where == "pytest":
        (home / "test_readme.py").write_text(text)
        return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_readme.py"]
    interpreter = str(environment(where)) if where else sys.executable
    return [interpreter, "-c", text]


def environment(name: str) -> Path:
    """A client's environment; without it the block is skipped, or fails where CI is set."""
    path = ROOT / "scripts" / "clients" / "setup.py"
    spec = importlib.util.spec_from_file_location("client_environments", path)
    assert spec is not None
    assert spec.loader is not None
    environments = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = environments  # Dataclasses look their module up there.
    spec.loader.exec_module(environments)
    try:
        return Path(environments.prepare(name))
    except environments.Unavailable as reason:
        if os.environ.get("CI", "") not in ("", "false", "0"):
            pytest.fail(f"{name}: {reason}")
        pytest.skip(f"{name}: {reason}")


def write_tools(home: Path, jars: Path) -> None:
    """Kafka's shell scripts, as far as they only start a main class."""
    for name, main_class in TOOLS.items():
        script = home / name
        java = "java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        script.write_text(f'#!/bin/sh\nexec {java} -cp "{jars}/*" {main_class} "$@"\n')
        script.chmod(0o755)


def test_readme_settings(tmp_path: Path) -> None:
    text = README.read_text()
    document, peers = re.findall(r"^```toml\n(.*?)^```$", text, re.M | re.S)
    (tmp_path / "chronik.toml").write_text(document)
    settings = resolve({}, {}, file=str(tmp_path / "chronik.toml"))
    assert settings.host == tomllib.loads(document)["host"]
    assert settings.kafka["num.partitions"] == "4"
    (tmp_path / "peers.toml").write_text(peers)
    (own,) = resolve({}, {}, file=str(tmp_path / "peers.toml")).peers
    assert (own.node_id, own.internal_port, own.rack) == (1, 9192, "a")
    starts = re.findall(r"^(?:CHRONIK_\S+ )*chronik start(.*)$", text, re.M)
    assert len(starts) == 7
    (listed,) = re.findall(r"^PEERS=(.*)$", text, re.M)
    for options in starts:
        words = shlex.split(options.replace("$PEERS", listed), comments=True)
        given = node.parse(words)
        assert given is not None, options
        resolve(given.options, {}, sets=given.sets)


def test_config_page_is_current() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "config_doc.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def file_map() -> tuple[list[str], list[str]]:
    """The paths of the map's two tables: modules, and what lies beside the package."""
    text = ARCHITECTURE.read_text().split("\n## File map\n")[1]
    modules, others = text.split("\nBeside the package:\n")
    rows = re.compile(r"^\| `([^`]+)` \| .+ \|$", re.M)
    return rows.findall(modules), rows.findall(others)


def test_file_map_has_every_module_once() -> None:
    modules = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if path.name != "__init__.py" or has_code(path)
    ]
    listed, _ = file_map()
    assert sorted(listed) == sorted(modules)


def has_code(path: Path) -> bool:
    """Whether a package's own file is more than its docstring and what it hands on."""
    body = ast.parse(path.read_text()).body[1:]
    return not all(isinstance(node, ast.Import | ast.ImportFrom | ast.Assign) for node in body)


def test_file_map_names_only_what_exists() -> None:
    _, others = file_map()
    assert others
    assert [path for path in others if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_names_only_files_that_exist(page: Path) -> None:
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w-]+\.(?:py|sh|md))`", page.read_text()))
    below = (ROOT, SOURCE, SOURCE / "server")
    assert [path for path in named if not any((root / path).exists() for root in below)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
