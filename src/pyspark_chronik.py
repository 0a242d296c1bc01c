"""Where PySpark finds `format("chronik")` by itself.

On the first use of a Python data source, PySpark imports every top-level module whose name begins
with `pyspark_`, in every session of the environment. So importing it must never fail: without the
`spark` extra there is no `DefaultSource` here, and PySpark goes on to the next.
"""

try:
    from chronik.spark.source import ChronikSource as DefaultSource
except ImportError:  # The extra is not installed, or only a part of it.
    pass
else:
    __all__ = ["DefaultSource"]
