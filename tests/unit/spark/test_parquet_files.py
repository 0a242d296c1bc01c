"""How rows are laid out in Parquet files."""

import pyarrow as pa
import pyarrow.parquet as pq

from chronik.spark.lake.parquet import FileWriter
from chronik.spark.lake.storage import Storage

ROWS = 10_000
PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])


def test_only_values_that_come_again_have_a_dictionary(tmp_path):
    columns = {
        "id": pa.array(range(ROWS)),
        "city": pa.array([f"city-{number % 100}" for number in range(ROWS)]),
        "absent": pa.nulls(ROWS, pa.string()),
        "headers": pa.array([[{"key": "k", "value": b"v"}]] * ROWS, pa.list_(PAIR)),
        "place": pa.array([{"zip": "10115"}] * ROWS),
        "tags": pa.array([[("a", "b")]] * ROWS, pa.map_(pa.string(), pa.string())),
    }
    rows = pa.record_batch(columns)
    with FileWriter(Storage(str(tmp_path)), rows.schema, now_ms=1) as writer:
        writer.write(rows)
        (written,) = writer.close()
    group = written.footer.row_group(0)
    chunks = [group.column(index) for index in range(group.num_columns)]
    plain = [each.path_in_schema for each in chunks if not each.has_dictionary_page]
    assert plain == ["id"]
    assert pq.read_table(tmp_path / written.path).equals(pa.table(columns))
