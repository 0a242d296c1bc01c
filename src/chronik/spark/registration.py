"""Making the source known to a session, and saying at once if its workers run another Python.

PySpark starts workers with `PYSPARK_PYTHON`, and with whatever `python3` is on the path where that
is not set, even if the driver runs in a virtual environment. Such a worker lacks this package, or
cannot read what the driver has pickled; Spark would say so late, and with a long trace.
"""

import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Final

from chronik.spark.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ASK: Final = (
    "import sys; print('%d.%d' % sys.version_info[:2]); import chronik.spark, pyarrow, pyspark"
)
_ASK_TIMEOUT_S: Final = 60.0  # An interpreter on a cold network drive takes many seconds.


def register(spark: "SparkSession") -> None:
    """Register the source with a session, or SourceError if its workers could not run it."""
    from pyspark.errors import PySparkException

    from chronik.spark.source import ChronikSource

    try:
        context = spark.sparkContext
    except PySparkException:  # Spark Connect: the workers are elsewhere.
        spark.dataSource.register(ChronikSource)
        return
    # On a cluster the same path may name another interpreter: there each task checks for itself.
    if str(context.master).startswith("local"):
        check_worker_python(context.pythonExec)
    spark.dataSource.register(ChronikSource)


@cache
def check_worker_python(executable: str) -> None:
    """Ask the interpreter of the workers what it is."""
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    advice = f"set PYSPARK_PYTHON={sys.executable} before the session is started"
    try:
        asked = subprocess.run(
            [executable, "-c", _ASK], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(
            f"Spark's workers run {executable}, which fails: {error}: {advice}"
        ) from None
    theirs = asked.stdout.strip()
    if theirs and theirs != ours:
        raise SourceError(
            f"Spark's workers run Python {theirs} ({executable}) and the driver {ours}: {advice}"
        )
    if asked.returncode:
        reason = (asked.stderr.strip().splitlines() or ["it fails"])[-1]
        raise SourceError(
            f"Spark's workers run {executable}, which lacks chronik[spark] ({reason}): {advice}"
        )
