"""Topics as Spark tables: the `chronik` data source, and the pipeline to lake tables.

    import chronik.spark

    chronik.spark.register(spark)  # not needed where the package is installed: Spark finds it
    spark.read.format("chronik").option("bootstrap", "localhost:9092").load("orders").show()

    # history from the lake table, the tail from the log, as one frame
    chronik.spark.table(spark, "orders", bootstrap="localhost:9092", warehouse="lake").show()

Nothing heavy is imported here: without the `spark` extra the package can be imported, and each
function says what is missing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from chronik.spark.lake.warehouse import Warehouse


def register(spark: "SparkSession") -> None:
    """Make `format("chronik")` known to a session whose workers do not find it by themselves."""
    from chronik.spark.registration import register as register_source

    register_source(spark)


def table(
    spark: "SparkSession",
    name: str,
    *,
    bootstrap: str = "localhost:9092",
    warehouse: "str | Warehouse",
    options: Mapping[str, str] | None = None,
    **overrides: str,
) -> "DataFrame":
    """A topic's whole history: what its lake table has, and from the log what it has not yet.

    Both are pinned now: every action on the frame sees the same rows. How values are decoded is
    taken from the topic's settings, as the pipeline does; `overrides` (table, decode, schema) say
    it instead where a cluster has no such settings. `options` are further ones of the connection.
    """
    from chronik.spark.union import table as union_table

    return union_table(
        spark,
        name,
        warehouse=warehouse,
        connection_options={"kafka.bootstrap.servers": bootstrap, **(options or {})},
        overrides=overrides,
    )
