"""A Spark driver that does what it is told, a line of JSON at a time, and answers each with one.

What else it prints, and all that Spark logs meanwhile, is what a person would have before him.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from chronik.spark.audit.job import audit as audit_running
from chronik.spark.connection import Connection
from chronik.spark.pipeline.config import load_config

MARK = "answer: "


def write(spark: SparkSession, options: dict[str, str], values: list[str]) -> None:
    frame = spark.createDataFrame([(value,) for value in values], "value string")
    frame.write.format("chronik").options(**options).mode("append").save()


def read(spark: SparkSession, options: dict[str, str]) -> list[str]:
    frame = spark.read.format("chronik").options(**options).load()
    frame.explain(extended=True)
    return sorted(frame.toJSON().collect())


def stream(
    spark: SparkSession, options: dict[str, str], checkpoint: str, table: str
) -> list[str | None]:
    """What a table has after what there was to read was added to it."""
    frame = spark.readStream.format("chronik").options(**options).load()
    _drain(frame, "parquet", {"path": table, "checkpointLocation": checkpoint})
    return sorted(str(row.value) for row in spark.read.parquet(table).collect())


def copy(
    spark: SparkSession, options: dict[str, str], into: dict[str, str], checkpoint: str
) -> None:
    """From topic to topic."""
    frame = spark.readStream.format("chronik").options(**options).load().select("value")
    _drain(frame, "chronik", {**into, "checkpointLocation": checkpoint})


def audit(spark: SparkSession, config: str, topic: str) -> list[dict[str, Any]]:
    """As `chronik pipeline audit` does it, in a session that is there already."""
    settings = load_config(config, {})
    connection = Connection.from_options(settings.connection_options)
    return [audit_running(settings, connection, spark, topics=[topic]).as_json()]


def _drain(frame: DataFrame, to: str, options: dict[str, str]) -> None:
    query = frame.writeStream.format(to).options(**options).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        print(query.lastProgress, query.status)
    query.explain(extended=True)


STEPS = {each.__name__: each for each in (write, read, stream, copy, audit)}


def answer(spark: SparkSession, step: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    try:
        found: dict[str, Any] = {"rows": STEPS[step.pop("do")](spark, **step)}
    except PySparkException as error:
        traceback.print_exc()
        found = {"error": str(error)}
    return {**found, "seconds": time.monotonic() - began}


def main() -> None:
    builder = SparkSession.builder.appName("chronik-secured")
    for name, value in json.loads(sys.stdin.readline()).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("DEBUG")
    for line in sys.stdin:
        print(MARK + json.dumps(answer(spark, json.loads(line))), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
