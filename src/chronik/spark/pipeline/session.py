"""The Spark application of a pipeline: small, quiet, and tried again where Spark would not.

Rows never pass through the JVM, so that it needs little memory. A local master retries nothing
unless its URL says how often: `local[2]` becomes `local[2,4]`, as on a cluster.
"""

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

from chronik.spark.lake.table import LakeError

TASK_TRIES: Final = 4  # Spark's own default on a cluster
_LOCAL: Final = re.compile(r"local(?:\[(\*|\d+)\])?")
_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # What goes wrong is told by the pipeline, in one line; a stack trace only hides it.
    "spark.log.level": "FATAL",
    "spark.driver.memory": "1g",
    "spark.task.maxFailures": str(TASK_TRIES),
    "spark.sql.session.timeZone": "UTC",
}


def with_tries(master: str) -> str:
    """A master URL whose tasks are tried several times."""
    local = _LOCAL.fullmatch(master)
    return master if local is None else f"local[{local[1] or 1},{TASK_TRIES}]"


def tries_of(context: Any) -> int:
    """How often Spark tries a task before it gives up."""
    local = re.fullmatch(r"local(?:\[(?:\*|\d+)(?:,(\d+))?\])?", str(context.master))
    if local is not None:
        return int(local[1] or 1)
    return int(context.getConf().get("spark.task.maxFailures", str(TASK_TRIES)))


def open_session(
    master: str, settings: Mapping[str, str] | None = None, *, name: str = "chronik-pipeline"
) -> Any:
    """A Spark session. Raises LakeError if Spark cannot be started."""
    # Workers run this very Python, unless somebody knows better: another has no chronik.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(with_tries(master))
    wanted = {**_DEFAULTS, **(settings or {})}
    if master.startswith("local"):
        wanted = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        } | wanted
    for name, value in wanted.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise LakeError(f"Spark does not start at --master {master}: {reason}") from error
    except Exception as error:
        if type(error).__name__ != "Py4JJavaError":
            raise
        reason = str(getattr(error, "java_exception", error)).splitlines()[0]
        raise LakeError(f"Spark does not start at --master {master}: {reason}") from error
