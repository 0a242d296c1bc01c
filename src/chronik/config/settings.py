"""A node's own settings: each as an option, a CHRONIK_* variable or a TOML key, in that order.

Kafka's settings keep Kafka's names: `--set num.partitions=4`, `CHRONIK_KAFKA_NUM_PARTITIONS=4`,
or `"num.partitions" = 4` in the file's `[kafka]` table. A name that is not known is refused in each
of these places: a setting that is silently ignored is a setting that somebody relies on.

The file may also say both addresses of a node side by side: `[bind]` and `[advertise]`, each with
`kafka` and `internal`.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from chronik.config.broker_settings import BROKER_SETTINGS
from chronik.config.definitions import InvalidSetting, render
from chronik.config.effective import BrokerConfig
from chronik.config.group_settings import check_defaults
from chronik.config.peers import Peer, parse_peers, peers_of_tables

Durability = Literal["fsync", "replicated"]
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
VARIABLE_PREFIX: Final = "CHRONIK_"
KAFKA_PREFIX: Final = "CHRONIK_KAFKA_"
# Variables of ours that are no settings: where the file is, whom the commands talk to, and what
# the tests take, which start nodes in their own environment.
OTHER_VARIABLES: Final = frozenset(
    {
        "CHRONIK_CONFIG",
        "CHRONIK_BOOTSTRAP",
        "CHRONIK_SIM_SEEDS",
        "CHRONIK_KILLS",
        "CHRONIK_SEED",
    }
)
TEST_PREFIX: Final = "CHRONIK_TEST_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one node is to run."""

    host: str = "127.0.0.1"
    port: int = 9092
    advertise: str | None = None
    http_port: int = 9644
    data_dir: str = "./chronik-data"
    node_id: int | None = None  # the data directory's own, what a cluster gives it, or 1
    rack: str | None = None
    durability: Durability = "fsync"
    peers: tuple[Peer, ...] = ()
    secret: str | None = None
    join: str | None = None
    internal: str | None = None
    advertise_internal: str | None = None
    log_level: str = "info"
    kafka: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeSetting:
    """How a setting of the node is given: the check of its text, and that check in words."""

    parse: Callable[[str], Any]
    allowed: str


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return parse


def _choice(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return parse


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT as its two parts; brackets around an IPv6 host are taken off."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not 0 < int(port) < 65536:
        raise ValueError(text)
    return host.removeprefix("[").removesuffix("]"), int(port)


def address_text(host: str, port: int) -> str:
    """An address as HOST:PORT."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _address(text: str) -> str:
    parse_address(text)
    return text


NODE_SETTINGS: Final[Mapping[str, NodeSetting]] = {
    "host": NodeSetting(_text, "a host name or address to listen on"),
    "port": NodeSetting(_number(0, 65535), "a whole number from 0 (any free port) to 65535"),
    "advertise": NodeSetting(_address, "HOST:PORT, as clients reach this node"),
    "http_port": NodeSetting(_number(-1, 65535), "a whole number from 0 to 65535, or -1 for none"),
    "data_dir": NodeSetting(_text, "a directory"),
    "node_id": NodeSetting(_number(0, 2**31 - 1), "a whole number from 0 to 2147483647"),
    "rack": NodeSetting(_text, "a name"),
    "durability": NodeSetting(_choice("fsync", "replicated"), "fsync or replicated"),
    "peers": NodeSetting(
        parse_peers, "ID@HOST:KAFKA_PORT:INTERNAL_PORT,... of all nodes, this one included"
    ),
    "secret": NodeSetting(_text, "what all nodes of a cluster, and nobody else, know"),
    "join": NodeSetting(_address, "HOST:PORT of any node of the cluster, either port of it"),
    "internal": NodeSetting(_address, "HOST:PORT to listen on for other nodes"),
    "advertise_internal": NodeSetting(_address, "HOST:PORT, as other nodes reach this one"),
    "log_level": NodeSetting(_choice(*LOG_LEVELS), ", ".join(LOG_LEVELS)),
}


def resolve(
    options: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    file: str | None = None,
    sets: Sequence[str] = (),
) -> Settings:
    """The settings of a node, or InvalidSetting with one line that says what is wrong."""
    _check_variables(environment)
    document = _read(file) if file is not None else {}
    _spread_addresses(document, file or "")
    given: dict[str, Any] = {}
    for name, setting in NODE_SETTINGS.items():
        for place, value in (
            (f"--{name.replace('_', '-')}", options.get(name)),
            (variable_of(name), environment.get(variable_of(name))),
            (f"{name} in {file}", document.get(name)),
        ):
            if isinstance(value, list) and name == "peers" and file is not None:
                given[name] = peers_of_tables(value, file)
                break
            if value is not None:
                given[name] = _parse(setting, place, value)
                break
    settings = Settings(**given, kafka=_kafka(sets, environment, document.get("kafka", {}), file))
    check_defaults(BrokerConfig(static=settings.kafka, cluster={}, broker={}))
    if settings.peers and settings.join is not None:
        raise InvalidSetting(
            "--join: peers form a cluster, and a node that joins finds one; not both"
        )
    return _with_own_peer(settings, "port" in given)


def _with_own_peer(settings: Settings, is_port_given: bool) -> Settings:
    """A node among peers listens where its own entry says, unless it is told otherwise."""
    if not settings.peers:
        return settings
    node_id = 1 if settings.node_id is None else settings.node_id
    own = next((peer for peer in settings.peers if peer.node_id == node_id), None)
    if own is None:
        raise InvalidSetting(f"--peers: node {node_id} itself is not among them")
    return replace(
        settings,
        node_id=node_id,
        port=settings.port if is_port_given else own.kafka_port,
        advertise=settings.advertise or address_text(own.host, own.kafka_port),
        rack=settings.rack or own.rack,
    )


def _spread_addresses(document: dict[str, Any], file: str) -> None:
    """Put what [bind] and [advertise] say under the names of the settings."""
    bind = document.pop("bind", {})
    advertise = document.get("advertise")
    if isinstance(advertise, dict):
        del document["advertise"]
    else:
        advertise = {}
    for name, table in (("bind", bind), ("advertise", advertise)):
        unknown = sorted(set(table) - {"kafka", "internal"}) if isinstance(table, dict) else [name]
        if unknown:
            raise InvalidSetting(f"{file}: [{name}] has kafka and internal, each HOST:PORT")
    given = {"internal": bind.get("internal"), "advertise": advertise.get("kafka")}
    given["advertise_internal"] = advertise.get("internal")
    if "kafka" in bind:
        try:
            given["host"], given["port"] = parse_address(str(bind["kafka"]))
        except ValueError:
            raise InvalidSetting(f"{file}: [bind] kafka: give HOST:PORT") from None
    for name, value in given.items():
        if value is not None and name in document:
            raise InvalidSetting(f"{file}: {name} and the tables say the same thing twice")
        if value is not None:
            document[name] = value


def variable_of(name: str) -> str:
    """The variable that gives a setting of the node."""
    return VARIABLE_PREFIX + name.upper()


def _kafka_variable_of(name: str) -> str:
    return KAFKA_PREFIX + name.upper().replace(".", "_")


def _check_variables(environment: Mapping[str, str]) -> None:
    own = [variable_of(name) for name in NODE_SETTINGS]
    known = {*own, *map(_kafka_variable_of, BROKER_SETTINGS), *OTHER_VARIABLES}
    for variable in sorted(environment):
        if not variable.startswith(VARIABLE_PREFIX) or variable.startswith(TEST_PREFIX):
            continue
        if variable in known:
            continue
        if variable.startswith(KAFKA_PREFIX):
            raise InvalidSetting(f"{variable}: unknown Kafka setting; see docs/CONFIG.md")
        names = ", ".join([*own, "CHRONIK_CONFIG", f"{KAFKA_PREFIX}*"])
        raise InvalidSetting(f"{variable}: unknown variable; known ones: {names}")


def _parse(setting: NodeSetting, place: str, value: Any) -> Any:
    try:
        return setting.parse(str(value))
    except ValueError:
        raise InvalidSetting(f"{place}: {value!r} is not allowed; give {setting.allowed}") from None


def _read(file: str) -> dict[str, Any]:
    try:
        with open(file, "rb") as stream:
            document = tomllib.load(stream)
    except OSError as error:
        raise InvalidSetting(f"--config: cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"--config: {file} is not TOML: {error}") from None
    unknown = sorted(set(document) - set(NODE_SETTINGS) - {"kafka", "bind"})
    if unknown:
        names = ", ".join([*NODE_SETTINGS, "[bind]", "[kafka]"])
        raise InvalidSetting(f"{file}: unknown setting {unknown[0]}; known ones: {names}")
    return document


def _kafka(
    sets: Sequence[str], environment: Mapping[str, str], table: Any, file: str | None
) -> dict[str, str]:
    if not isinstance(table, dict):
        raise InvalidSetting(f"{file}: [kafka] must be a table of Kafka settings")
    values: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            raise InvalidSetting(f'{file}: quote Kafka names: "{name}...." = value')
        _take(values, name, _as_text(value), f"[kafka] in {file}")
    for name in BROKER_SETTINGS:
        variable = _kafka_variable_of(name)
        if variable in environment:
            _take(values, name, environment[variable], variable)
    for item in sets:
        name, equals, value = item.partition("=")
        if not equals:
            raise InvalidSetting(f"--set: {item!r} is not NAME=VALUE")
        _take(values, name.strip(), value, "--set")
    return values


def _take(values: dict[str, str], name: str, text: str, place: str) -> None:
    definition = BROKER_SETTINGS.get(name)
    if definition is None:
        raise InvalidSetting(f"{place}: unknown Kafka setting {name}; see docs/CONFIG.md")
    try:
        values[name] = render(definition.parse(text)) or ""
    except InvalidSetting as error:
        raise InvalidSetting(f"{place}: {error}") from None


def _as_text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
