"""An inferred schema has the fields that Spark can tell apart."""

import pyarrow as pa

from chronik.spark.value_schema import distinct_fields


def test_fields_that_no_column_can_be_are_left_out() -> None:
    nested = pa.struct([("x", pa.int64()), ("X", pa.int64()), ("", pa.int64())])
    fields = pa.schema(
        [
            ("", pa.int64()),
            ("_Offset", pa.int64()),
            ("Name", pa.string()),
            ("name", pa.string()),
            ("a b", pa.bool_()),
            ("who", nested),
            ("all", pa.list_(nested)),
            ("none", pa.struct([("", pa.int64())])),
        ]
    )
    left = pa.struct([("x", pa.int64())])
    assert distinct_fields(fields, {"_offset"}) == [
        pa.field("Name", pa.string()),
        pa.field("a b", pa.bool_()),
        pa.field("who", left),
        pa.field("all", pa.list_(left)),
    ]
