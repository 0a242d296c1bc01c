"""Writes docs/CONFIG.md from the definitions; with --check, only says whether it is up to date."""

import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

from chronik.cli.start import start
from chronik.config.broker_settings import BROKER_SETTINGS
from chronik.config.definitions import Definition, Update, render
from chronik.config.group_settings import GROUP_SETTINGS
from chronik.config.settings import NODE_SETTINGS, Settings, variable_of
from chronik.config.topic_settings import TOPIC_SETTINGS

PAGE = Path(__file__).parents[1] / "docs" / "CONFIG.md"

HEAD = """\
# Settings

Generated from `src/chronik/config` by `scripts/config_doc.py`: change the definitions there.

## Of a node

Given as an option of `chronik start`, as a variable or as a key of the TOML file; the first of
these that is there counts. `--config FILE.toml` (or `CHRONIK_CONFIG`) names the file. An option, a
key or a `CHRONIK_` variable that is not known, or a value that is not allowed, ends the start with
one line that names it and exit code 2.

"""

NODE_COLUMNS = ("key", "option", "variable", "default", "allowed", "what it is")

BROKER_HEAD = """
## Of a broker

Kafka's settings under Kafka's names: `--set NAME=VALUE` (as often as needed), a variable
`CHRONIK_KAFKA_` and the name in capitals with `_` for `.` (`CHRONIK_KAFKA_NUM_PARTITIONS=4`), or a
quoted key of the file's `[kafka]` table (`"num.partitions" = 4`); the first of these counts. An
option, variable or key that is not in this table is refused.

*Changes* says when: `at the start` only as above; `any time` also by AlterConfigs and
IncrementalAlterConfigs, for one broker or as the default of all. A value set for the broker beats
one set for all brokers, and both beat what was given at the start.

"""

BROKER_COLUMNS = ("name", "type", "default", "allowed", "changes", "what it is")

TOPIC_HEAD = """
## Of a topic

Given when a topic is created (`chronik topics create orders --config retention.ms=86400000`) and
changed at any time (`chronik topics alter`, AlterConfigs, IncrementalAlterConfigs). What a topic
does not set comes from the broker settings in the column *falls back to*: the first that is set
counts, then the default. One that is not in this table is refused with INVALID_CONFIG (see
[ADR 0008](adr/0008-settings-are-honoured-or-refused.md)).

"""

GROUP_HEAD = """
## Of a group

Of one consumer group (KIP-848), which need not be there yet: what is set for it waits for it, and
outlives it. Changed at any time by AlterConfigs and IncrementalAlterConfigs of the resource type
GROUP (`kafka-configs --entity-type groups`), and followed from each member's next heartbeat on.

"""

TOPIC_COLUMNS = ("name", "type", "default", "allowed", "falls back to", "what it is")

CHANGES = {
    Update.READ_ONLY: "at the start",
    Update.PER_BROKER: "any time, one broker",
    Update.CLUSTER_WIDE: "any time",
}


def render_page() -> str:
    """The page as it should be."""
    return "".join(
        (
            HEAD,
            table(NODE_COLUMNS, map(node_row, node_names())),
            BROKER_HEAD,
            table(BROKER_COLUMNS, map(broker_row, BROKER_SETTINGS.values())),
            TOPIC_HEAD,
            table(TOPIC_COLUMNS, map(topic_row, TOPIC_SETTINGS.values())),
            GROUP_HEAD,
            table(TOPIC_COLUMNS, map(topic_row, GROUP_SETTINGS.values())),
        )
    )


def table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def node_names() -> list[str]:
    return [field.name for field in fields(Settings) if field.name != "kafka"]


def node_row(name: str) -> tuple[str, ...]:
    default = getattr(Settings(), name)
    return (
        f"`{name}`",
        f"`--{name.replace('_', '-')}`",
        f"`{variable_of(name)}`",
        value_text(None if default in (None, ()) else str(default)),
        NODE_SETTINGS[name].allowed,
        node_meaning(name),
    )


def node_meaning(name: str) -> str:
    """What the option's help says, without the default that it ends with."""
    option = get_type_hints(start, include_extras=True)[name].__metadata__[0]
    return re.sub(r" \[[^]]*\]$", "", str(option.help))


def broker_row(definition: Definition) -> tuple[str, ...]:
    return (*facts(definition), CHANGES[definition.update], definition.documentation)


def topic_row(definition: Definition) -> tuple[str, ...]:
    synonyms = ", ".join(f"`{name}`" for name in definition.synonyms)
    return (*facts(definition), synonyms, definition.documentation)


def facts(definition: Definition) -> tuple[str, ...]:
    return (
        f"`{definition.name}`",
        definition.kind.name.lower(),
        value_text(render(definition.default)),
        definition.allowed(),
    )


def value_text(value: str | None) -> str:
    return "none" if value is None else f"`{value}`"


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit code is 1 if the check fails."""
    page = render_page()
    if arguments == ["--check"]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page:
            return 0
        print(f"{PAGE.name} is out of date: run scripts/config_doc.py", file=sys.stderr)
        return 1
    if arguments:
        print("usage: config_doc.py [--check]", file=sys.stderr)
        return 2
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
