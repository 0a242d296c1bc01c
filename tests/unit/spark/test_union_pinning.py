"""Where the tail begins, and what a statement mentions: without Spark."""

import re
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.spark import table
from chronik.spark.errors import DataLossError, OptionsError, SourceError
from chronik.spark.log_facts import Topic
from chronik.spark.offset_range import OffsetRange
from chronik.spark.planning import LogSpan
from chronik.spark.range_frame import pieces
from chronik.spark.spark_failures import one_line
from chronik.spark.union import tail_of
from chronik.spark.views import mentioned

TOPIC = Topic(name="orders", topic_id=bytes(16), partitions=(0, 1))


def span(start: int, end: int) -> LogSpan:
    return LogSpan(log_start_offset=start, end_offset=end)


def tail(table_end: int | None, start: int, end: int) -> list[tuple[int, int]]:
    found = tail_of(TOPIC, {0: table_end}, {0: span(start, end)})
    return [(each.start_offset, each.end_offset) for each in found]


@pytest.mark.parametrize(
    ("table_end", "start", "end", "expected"),
    [
        (5, 0, 9, [(5, 9)]),
        (5, 5, 9, [(5, 9)]),
        (9, 0, 9, []),
        (9, 9, 9, []),
        (0, 0, 3, [(0, 3)]),
        (None, 4, 9, [(4, 9)]),  # a partition that the table has nothing of yet
        (None, 9, 9, []),
    ],
)
def test_the_tail_begins_where_the_table_ends(
    table_end: int | None, start: int, end: int, expected: list[tuple[int, int]]
) -> None:
    assert tail(table_end, start, end) == expected


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 300)), max_size=4),
    st.integers(1, 100),
)
def test_pieces_are_the_ranges_in_order(spans: list[tuple[int, int]], most: int) -> None:
    ranges = [
        OffsetRange("orders", bytes(16), partition, start, start + count)
        for partition, (start, count) in enumerate(spans)
    ]
    cut = pieces(ranges, most)
    assert all(0 < each.end_offset - each.start_offset <= most for each in cut)
    assert [
        (each.partition, offset)
        for each in cut
        for offset in range(each.start_offset, each.end_offset)
    ] == [
        (each.partition, offset)
        for each in ranges
        for offset in range(each.start_offset, each.end_offset)
    ]


def test_what_the_log_no_longer_has_is_counted() -> None:
    with pytest.raises(DataLossError, match="4 records are in neither"):
        tail(5, 9, 12)
    with pytest.raises(DataLossError, match="the log has lost 3 records"):
        tail(12, 0, 9)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("select * from orders", ["orders"]),
        ("SELECT * FROM Orders o JOIN `web-clicks` c USING (id)", ["orders", "web-clicks"]),
        ("select 1", []),
        ("select * from orders_2026 join `orders-eu`", []),
        ("select orders.price from orders", ["orders"]),
        (" show tables", ["orders", "payments", "web-clicks"]),
        ("SHOW VIEWS like 'o*'", ["orders", "payments", "web-clicks"]),
    ],
)
def test_only_what_a_statement_mentions_becomes_a_view(statement: str, expected: list[str]) -> None:
    assert mentioned(statement, ["payments", "web-clicks", "orders"]) == expected


def test_an_error_of_spark_is_one_line() -> None:
    text = "[TABLE_OR_VIEW_NOT_FOUND] The table `x` cannot be found. SQLSTATE: 42P01; line 1\n'P"
    assert one_line(text) == text.splitlines()[0]
    raised = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback\nTraceback (most recent call last):\n"
        '  File "a.py", line 1\nchronik.spark.errors.SourceError: there is no topic x: create it\n'
    )
    assert one_line(raised) == "there is no topic x: create it"
    assert one_line("") == "Spark failed without a word"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"decdoe": "json"}, "no setting decdoe: did you mean decode?"),
        ({"options": {"kafka.secuirty.protocol": "SSL"}}, "did you mean security.protocol?"),
        ({"options": {"subscribe": "orders"}}, "subscribe is no option of a connection"),
    ],
)
def test_what_nobody_knows_is_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(OptionsError, match=re.escape(word)):
        table(cast(Any, None), "orders", bootstrap="127.0.0.1:1", warehouse="lake", **options)


def test_of_topics_that_differ_in_case_the_one_that_is_written_so_is_meant() -> None:
    names = ["Orders", "orders", "web-Clicks"]
    assert mentioned("select * from orders", names) == ["orders"]
    assert mentioned("select * from Orders", names) == ["Orders"]
    assert mentioned("select * from `WEB-clicks`", names) == ["web-Clicks"]
    assert mentioned("show tables", names) == names
    for statement in ("select * from ORDERS", "select * from Orders a join orders b"):
        with pytest.raises(SourceError, match="does not tell Orders from orders: name one"):
            mentioned(statement, names)
