"""The columns that a read gives, and how a batch of records becomes them.

Without `decode` they are those of Spark's `kafka` source: key, value, topic, partition, offset,
timestamp, timestampType, and headers if they are asked for.

With `decode` the fields of the values come first, typed. Behind them, with a `_` so that they can
hardly collide, comes what the log knows: `_key, _topic, _partition, _offset, _timestamp`, with
`_headers` if they are asked for, and `_error`, which says why a value could not be decoded: its
fields are then null. The lake tables of the pipeline have the same names. A null value is a row of
nulls without an error. `columns` chooses among all, and can also name `_value`, `_timestampType`;
where `_error` is one of them, all fields are decoded, so that it says the same.

A user's `.schema(...)` is the whole output: fields of the values, and any of the `_` columns.

With `decodeKey`, `key` or `_key` is a string, or a struct of the key's fields; what is wrong with a
key stands in `_error` too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from chronik.spark.errors import OptionsError, SourceError
from chronik.spark.options import HEADERS, RAW_COLUMNS, ReadOptions
from chronik.spark.record_columns import SCHEMA

if TYPE_CHECKING:
    from chronik.spark.decode import Decoder

ERROR: Final = "_error"
KEY: Final = "key"
VALUE: Final = "value"
_DECODED_DEFAULT: Final = (KEY, "topic", "partition", "offset", "timestamp")
_LOG_COLUMNS: Final = (*RAW_COLUMNS, HEADERS)


def output_columns(options: ReadOptions) -> dict[str, str]:
    """The log's columns that a read may give: output name to the log's name."""
    prefix = "" if options.decode is None else "_"
    return {f"{prefix}{name}": name for name in _LOG_COLUMNS}


def output_schema(options: ReadOptions, fields: pa.Schema, key: pa.DataType) -> StructType:
    """All columns of a read whose values have these fields and whose keys have this type."""
    there = output_columns(options)
    types = dict(zip(SCHEMA.names, SCHEMA.types, strict=True))
    types[KEY] = key
    known = {name: pa.field(name, types[log_name]) for name, log_name in there.items()}
    known[ERROR] = pa.field(ERROR, pa.string())
    collisions = [name for name in fields.names if name in known]
    if collisions:
        raise SourceError(
            f"the values have a field {collisions[0]}, which is a name of the source's own: give a"
            " schema without it"
        )
    known |= {field.name: field for field in fields}
    chosen = options.columns or (*fields.names, *_default_columns(options))
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise OptionsError(
            f"columns names {unknown[0]}, which this read does not have; it has {', '.join(known)}"
        )
    arrow = pa.schema([known[name] for name in chosen])
    return StructType([_nullable(field) for field in from_arrow_schema(arrow).fields])


def _default_columns(options: ReadOptions) -> list[str]:
    there = {log_name: name for name, log_name in output_columns(options).items()}
    names = list(RAW_COLUMNS if options.decode is None else _DECODED_DEFAULT)
    if options.include_headers:
        names.append(HEADERS)
    decodes = options.decode is not None or options.decode_key is not None
    return [there[name] for name in names] + ([ERROR] if decodes else [])


def _nullable(field: StructField) -> StructField:
    return StructField(field.name, field.dataType, True)


def key_type(decoder: "Decoder | None") -> pa.DataType:
    """The type of a key that is decoded so; keys of one plain value are no struct."""
    if decoder is None:
        return pa.binary()
    if _is_plain(decoder):
        return decoder.schema.field(0).type
    return pa.struct(list(decoder.schema))


def _is_plain(decoder: "Decoder") -> bool:
    return list(decoder.schema.names) == [VALUE]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Makes the output's batches of the log's. Picklable: it is made once and sent to tasks."""

    schema: pa.Schema
    log_names: Mapping[str, str]
    decoder: "Decoder | None"
    key_decoder: "Decoder | None"

    @property
    def log_columns(self) -> list[str]:
        """What must be read of the log for it, in the log's order."""
        needed = {self.log_names[name] for name in self.schema.names if name in self.log_names}
        if self.decoder is not None:
            needed.add(VALUE)
        if self.key_decoder is not None:
            needed.add(KEY)
        # A read of no columns at all (count) still needs rows to be counted.
        return [name for name in _LOG_COLUMNS if name in needed] or ["offset"]

    def arrange(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The output's columns of some records, row for row."""
        columns: dict[str, pa.Array] = {}
        errors: list[pa.Array] = []
        if self.decoder is not None:
            decoded = self.decoder.decode(batch.column(VALUE))
            assert len(decoded.columns) == len(batch), "rows never shift"
            columns.update(zip(decoded.columns.schema.names, decoded.columns.columns, strict=True))
            errors.append(decoded.errors)
        key: pa.Array | None = None
        if self.key_decoder is not None:
            key, key_errors = _decoded_key(self.key_decoder, batch.column(KEY))
            errors.append(key_errors)
        for name, log_name in self.log_names.items():
            if name in self.schema.names and name not in columns:
                is_key = log_name == KEY and key is not None
                columns[name] = key if is_key else batch.column(log_name)
        if ERROR in self.schema.names:
            columns[ERROR] = pc.coalesce(*errors) if errors else pa.nulls(len(batch), pa.string())
        arrays = [_as_type(columns[field.name], field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _decoded_key(decoder: "Decoder", keys: pa.Array) -> tuple[pa.Array, pa.Array]:
    decoded = decoder.decode(keys)
    errors = pc.binary_join_element_wise("key", decoded.errors, ": ")
    if _is_plain(decoder):
        return decoded.columns.column(0), errors
    missing = pc.or_(pc.is_null(keys), pc.is_valid(decoded.errors))
    fields = [decoded.columns.schema.field(index) for index in range(decoded.columns.num_columns)]
    return pa.StructArray.from_arrays(decoded.columns.columns, fields=fields, mask=missing), errors


def _as_type(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    return array if array.type == wanted else array.cast(wanted)


def decodes_all(options: ReadOptions) -> bool:
    """Whether a read tells errors of fields that it does not show."""
    return options.decode is not None and ERROR in (options.columns or ())


def layout_for(schema: StructType, options: ReadOptions, whole: pa.Schema | None = None) -> Layout:
    """The layout of an output, whether the source or the user chose it.

    `whole` are all fields of the values, needed where the read `decodes_all`.
    """
    arrow = to_arrow_schema(schema, timezone="UTC")
    log_names = output_columns(options)
    if options.columns is not None and list(options.columns) != arrow.names:
        raise OptionsError("columns and .schema(...) choose different columns: keep one of them")
    fields = pa.schema(
        [field for field in arrow if field.name not in log_names and field.name != ERROR]
    )
    if options.decode is None and len(fields):
        raise OptionsError(
            f"the schema has {fields.names[0]}, which no record has: it has"
            f" {', '.join(log_names)}; add the option decode to read fields of the values"
        )
    decoder: Decoder | None = None
    if options.decode is not None and (len(fields) or ERROR in arrow.names):
        _check_given(fields, options)
        if whole is not None:  # Types of fields that are shown are those that the output has.
            more = [each for each in whole if each.name not in fields.names]
            whole = pa.schema([*fields, *more])
        decoder = make_decoder(options.decode, fields if whole is None else whole, options.schema)
    key_decoder = _key_decoder(arrow, options)
    _check_types(arrow, log_names, key_decoder)
    return Layout(schema=arrow, log_names=log_names, decoder=decoder, key_decoder=key_decoder)


def _check_given(fields: pa.Schema, options: ReadOptions) -> None:
    """Refuse a `.schema(...)` that says something else than the option; Avro does so itself."""
    if options.decode != "json" or options.schema is None:
        return
    given = make_decoder("json", None, options.schema).schema
    for field in fields:
        place = given.get_field_index(field.name)
        if place < 0 or not _is_same(given.field(place).type, field.type):
            raise OptionsError(
                f"the option schema and .schema(...) differ in {field.name}: keep one of them"
            )


def make_decoder(format_name: str, fields: pa.Schema | None, schema: str | None) -> "Decoder":
    """A decoder of these fields; formats with a schema language of their own have its text too."""
    from chronik.spark.decode import decoder_for

    options = {} if schema is None else {"schema": schema}
    return decoder_for(format_name, schema=fields, options=options)


def _key_decoder(arrow: pa.Schema, options: ReadOptions) -> "Decoder | None":
    name = KEY if options.decode is None else f"_{KEY}"
    if options.decode_key is None or not {name, ERROR} & set(arrow.names):
        return None
    fields: pa.Schema | None = None
    if name in arrow.names and pa.types.is_struct(arrow.field(name).type):
        fields = pa.schema(list(arrow.field(name).type))
    return make_decoder(options.decode_key, fields, options.key_schema)


def _check_types(
    arrow: pa.Schema, log_names: Mapping[str, str], key_decoder: "Decoder | None"
) -> None:
    for field in arrow:
        log_name = log_names.get(field.name)
        if log_name is None:
            continue
        wanted = SCHEMA.field(log_name).type
        if log_name == KEY:
            wanted = key_type(key_decoder)
        if not _is_same(field.type, wanted):
            raise OptionsError(
                f"the schema has {field.name} as {field.type}, and it is {wanted}: cast it after"
                " the read"
            )


def _is_same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types differ in nothing but what nested fields are called and may hold."""
    if pa.types.is_list(one) and pa.types.is_list(other):
        return _is_same(one.value_type, other.value_type)
    if pa.types.is_map(one) and pa.types.is_map(other):
        return _is_same(one.key_type, other.key_type) and _is_same(one.item_type, other.item_type)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return one.num_fields == other.num_fields and all(
            one.field(index).name == other.field(index).name
            and _is_same(one.field(index).type, other.field(index).type)
            for index in range(one.num_fields)
        )
    return bool(one == other)
