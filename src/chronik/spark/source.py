"""`format("chronik")`: topics as a Spark source and sink, in Python alone.

    spark.read.format("chronik").option("bootstrap", "localhost:9092").load("orders")

    (spark.readStream.format("chronik")
        .option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "orders")
        .option("decode", "json").option("schema", "id BIGINT, amount DECIMAL(10, 2)").load()
        .writeStream.format("chronik").option("topic", "checked").option("encode", "json")
        .option("checkpointLocation", "/tmp/checked").start())

Spark makes this object on the driver, in a Python process of its own, and pickles it to others:
it holds nothing but the options. The columns are in `layout`, the options in `options`.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from chronik.spark.batch_reader import BatchReader
from chronik.spark.errors import OptionsError, SourceError
from chronik.spark.layout import Layout, decodes_all, key_type, layout_for, output_schema
from chronik.spark.options import ReadOptions, read_options, write_options
from chronik.spark.stream_reader import RefusedReader, StreamReader
from chronik.spark.value_schema import key_decoder_of, value_fields

if TYPE_CHECKING:
    import pyarrow as pa

    from chronik.spark.sink import BatchWriter, StreamWriter


class ChronikSource(DataSource):
    """The data source that Spark knows as `chronik`."""

    @classmethod
    def name(cls) -> str:
        return "chronik"

    def schema(self) -> StructType:
        options = read_options(dict(self.options), is_stream=None)
        return output_schema(options, value_fields(options), key_type(key_decoder_of(options)))

    def reader(self, schema: StructType) -> BatchReader:
        options = read_options(dict(self.options), is_stream=False)
        return BatchReader(options, _layout(schema, options))

    def streamReader(self, schema: StructType) -> StreamReader | RefusedReader:
        try:
            options = read_options(dict(self.options), is_stream=True)
            return StreamReader(options, _layout(schema, options))
        except (OptionsError, SourceError) as error:
            return RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        # Every read starts Python processes: they must not pay for what only a write needs.
        from chronik.spark.sink import BatchWriter

        options = write_options(dict(self.options), is_stream=False)
        return BatchWriter(schema, options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        from chronik.spark.sink import StreamWriter

        # Complete mode "overwrites": as with Kafka's sink, its whole result is appended each time.
        return StreamWriter(schema, write_options(dict(self.options), is_stream=True))


def _layout(schema: StructType, options: ReadOptions) -> Layout:
    whole: pa.Schema | None = None
    if decodes_all(options):
        # Where there is nothing to infer from yet, what was chosen is all that is known.
        with suppress(OptionsError):
            whole = value_fields(options)
    return layout_for(schema, options, whole)
