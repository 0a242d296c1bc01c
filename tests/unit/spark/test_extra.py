"""Without the `spark` extra: PySpark imports every `pyspark_*` module, of any session there is."""

import subprocess
import sys

import pytest

CODE = """
import sys
sys.modules[{missing!r}] = None
import pyspark_chronik
import chronik.spark
assert not hasattr(pyspark_chronik, "DefaultSource")
"""


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "numpy"])
def test_a_part_of_the_extra_that_is_missing_breaks_no_session(missing: str) -> None:
    code = CODE.format(missing=missing)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_with_all_of_it_the_source_is_found() -> None:
    import pyspark_chronik

    assert pyspark_chronik.DefaultSource.name() == "chronik"
