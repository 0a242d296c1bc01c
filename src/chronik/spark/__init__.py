"""Topics as Spark tables: the `chronik` data source, and the pipeline to lake tables.

    import chronik.spark

    chronik.spark.register(spark)  # not needed where the package is installed: Spark finds it
    spark.read.format("chronik").option("bootstrap", "localhost:9092").load("orders").show()

Nothing heavy is imported here: without the `spark` extra the package can be imported, and each
function says what is missing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make `format("chronik")` known to a session whose workers do not find it by themselves."""
    from chronik.spark.registration import register as register_source

    register_source(spark)
