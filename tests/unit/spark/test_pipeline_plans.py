"""What a pipeline is told, and how a round is cut into tasks."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.spark.connection import Connection
from chronik.spark.lake.table import LakeError
from chronik.spark.offset_range import OffsetRange
from chronik.spark.pipeline.config import PipelineConfig, load_config, topic_config
from chronik.spark.pipeline.discovery import sorted_out
from chronik.spark.pipeline.session import with_tries
from chronik.spark.pipeline.shares import admitted, shared

TOPIC_ID = bytes(16)


@st.composite
def some_ranges(draw: st.DrawFn) -> tuple[list[OffsetRange], dict[int, float]]:
    ranges, weights = [], {}
    for partition in range(draw(st.integers(1, 6))):
        start, count = draw(st.integers(0, 9)), draw(st.integers(0, 500))
        ranges.append(OffsetRange("t", TOPIC_ID, partition, start, start + count))
        weights[partition] = draw(st.floats(1, 1e6))
    return ranges, weights


def offsets(ranges: list[OffsetRange]) -> list[tuple[int, int]]:
    return sorted(
        (each.partition, offset)
        for each in ranges
        for offset in range(each.start_offset, each.end_offset)
    )


@settings(deadline=None)
@given(some_ranges(), st.integers(1, 8), st.integers(1, 10**8))
def test_shares_are_all_offsets_once(
    world: tuple[list[OffsetRange], dict[int, float]], cores: int, task_bytes: int
) -> None:
    ranges, weights = world
    tasks = shared(ranges, weights, cores=cores, task_bytes=task_bytes)
    assert offsets([each for task in tasks for each in task]) == offsets(ranges)
    assert all(each.start_offset < each.end_offset for task in tasks for each in task)
    for task in tasks:
        size = sum((each.end_offset - each.start_offset) * weights[each.partition] for each in task)
        # The last offset of each range may stand out over the limit.
        assert size <= task_bytes * 1.01 + len(task) * max(weights.values())


@settings(deadline=None)
@given(some_ranges(), st.floats(1, 1e9))
def test_what_is_admitted_begins_where_the_ranges_do(
    world: tuple[list[OffsetRange], dict[int, float]], budget: float
) -> None:
    ranges, weights = world
    starts = {each.partition: each.start_offset for each in ranges}
    ends = {each.partition: each.end_offset for each in ranges}
    cut = admitted(ranges, weights, budget)
    for each in cut:
        assert each.start_offset == starts[each.partition]
        assert each.start_offset < each.end_offset <= ends[each.partition]
    assert len(cut) == sum(starts[p] < ends[p] for p in starts), "each gets its turn"


def test_small_work_is_one_task() -> None:
    ranges = [OffsetRange("t", TOPIC_ID, partition, 0, 10) for partition in range(100)]
    assert len(shared(ranges, dict.fromkeys(range(100), 100.0), cores=8, task_bytes=2**26)) == 1


@pytest.mark.parametrize(
    ("master", "tried"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_a_local_master_tries_again(master: str, tried: str) -> None:
    assert with_tries(master) == tried


def write(path: Path, text: str) -> str:
    (path / "pipeline.toml").write_text(text)
    return str(path / "pipeline.toml")


def test_a_file_and_options_over_it(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        'bootstrap = "a:1"\ninterval_s = 2\n[topics.t]\ntable = "delta"\n'
        'partition_by = ["day(_timestamp)", "c"]\n'
        '[kafka]\n"sasl.password" = "hush"\n[spark]\n"spark.cores.max" = 2\n',
    )
    config = load_config(path, {"bootstrap": "b:2", "warehouse": None})
    assert (config.bootstrap, config.interval_s, config.warehouse) == ("b:2", 2, "warehouse")
    assert config.spark == {"spark.cores.max": "2"}
    assert config.connection_options["kafka.sasl.password"] == "hush"
    assert "hush" not in repr(config)
    topic = topic_config("t", {}, config.topics["t"])
    assert topic is not None
    assert topic.partition_by == "day(_timestamp),c"


@pytest.mark.parametrize("name", ["bootstrap.servers", "kafka.bootstrap.servers", "bootstrap"])
def test_brokers_may_be_named_with_the_connection(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, f'[kafka]\n"{name}" = "a:1"\n"kafka.client.id" = "me"\n')
    config = load_config(path, {})
    connection = Connection.from_options(config.connection_options)
    assert (config.bootstrap, connection.bootstrap, connection.client_id) == ("a:1", "a:1", "me")
    over = load_config(path, {"bootstrap": "b:1"})
    assert Connection.from_options(over.connection_options).bootstrap == "b:1"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("bootstrap = 1", "wrong type"),
        ("interval_s = 0", "more than zero"),
        ("intervall_s = 1", "there is no setting intervall_s"),
        ("catalog = 1", r"write \[catalog\]"),
        ("[topics]\nt = 1", r"write \[topics.t\]"),
        (
            "[topics.t]\ntabel = 'delta'",
            r"\[topics.t\] a topic has no setting tabel: did you mean table",
        ),
        ("intervall_s = 1", "did you mean interval_s?"),
        ("[kafka]\n'secuirty.protocol' = 'SSL'", r"\[kafka\] .* did you mean security.protocol?"),
        ("[kafka]\n'isolation.level' = 'x'", "isolation.level is no option of a connection"),
        ("bootstrap = 'a:1'\n[kafka]\n'bootstrap.servers' = 'b:1'", "differ: keep one"),
        ("= 1", "no TOML"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(LakeError, match=complaint):
        load_config(write(tmp_path, text), {})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="check --config"):
        load_config(str(tmp_path / "none.toml"), {})
    with pytest.raises(LakeError, match="check --config"):
        load_config(str(tmp_path), {})


def test_topics_are_sorted_out() -> None:
    config = PipelineConfig(topics={"missing": {"table": "delta"}, "kafka": {"table": "iceberg"}})
    found = sorted_out(
        {
            "plain": {"chronik.table": "none"},
            "orders": {"chronik.table": "delta", "chronik.decode": "json"},
            "odd": {"chronik.table": "hudi"},
            "kafka": {},  # as Apache Kafka describes it: it does not know our settings
        },
        config,
    )
    assert [(each.name, each.table, each.decode) for each in found.topics] == [
        ("kafka", "iceberg", "raw"),
        ("orders", "delta", "json"),
    ]
    assert set(found.errors) == {"missing", "odd"}
    assert "there is no topic missing" in found.errors["missing"]
