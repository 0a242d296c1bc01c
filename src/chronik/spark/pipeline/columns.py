"""Values to columns where a topic may change its mind.

A decoder has a fixed schema. Two things may happen to it:

- a JSON topic whose schema was inferred gets new fields. They are noticed while they are decoded,
  in the same pass, and named, so that the pipeline can add columns and decode again;
- a field changes its type. With the policy `column` a row that the table's schema refuses is read
  field by field, each by the first of its columns (`price`, `price_v2`, `price_v3`) that takes the
  value; a type that none of them takes is named, for a column of its own.

Invariant
    A row is decoded whole or not at all: a value that has no column makes it a dead letter, and so
    does one whose field no column can be named after (`names`).
"""

import re
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from chronik.spark.decode import Decoded, Decoder, decoder_for
from chronik.spark.decode.json_depth import TOO_DEEP, dangerous, is_too_deep
from chronik.spark.decode.json_inference import infer
from chronik.spark.decode.json_values import JsonDecoder
from chronik.spark.decode.schema_text import parse_schema
from chronik.spark.errors import OptionsError
from chronik.spark.lake.schemas import stored_type, with_fields
from chronik.spark.pipeline.names import FieldNames

# More types of one field than this are no change of mind, but none at all.
VARIANTS_MAX: Final = 4
_VARIANT: Final = re.compile(r"(.+)_v([2-9]|[1-9]\d+)")
_NO_FIELDS: Final = JsonDecoder(pa.schema([]))


class NoticingJsonDecoder(JsonDecoder):
    """A JSON decoder that tells which fields it has met that are not in its schema."""

    def __init__(self, schema: pa.Schema, own: Collection[str]) -> None:
        super().__init__(schema)
        self._own = own
        self.names = FieldNames(self.schema, own)
        self.unexpected: dict[str, pa.DataType] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return NoticingJsonDecoder, (self.schema, self._own)

    def _parsed(self, found: Any) -> pa.Table:
        deep = dangerous(found.docs)
        if deep:
            found.drop(dict.fromkeys(deep, TOO_DEEP))
        more = self._parsed_with_more(found.docs)
        if more is None:
            table = super()._parsed(found)
            # Without what was refused; a field of mixed types is inferred more patiently.
            more = self._parsed_with_more(found.docs)
            self.notice(infer_or_none(found.docs) if more is None else more.schema)
            return table
        self.notice(more.schema)
        if any(more.schema.field(each.name).type != each.type for each in self._asked):
            return super()._parsed(found)  # Objects have new fields: they are left out for now.
        return more.select(self._by_arrow.names)

    @property
    def _asked(self) -> pa.Schema:
        return self._read_schema(as_text=self._times_are_text)

    def _parsed_with_more(self, docs: pa.BinaryArray) -> pa.Table | None:
        return _parsed_with_more(docs, self._asked)

    def notice(self, seen: pa.Schema | None) -> None:
        """Remember the fields among these that have no column."""
        for each in seen or ():
            if each.name not in self.unexpected:
                kind = self.names.addition(each.name, each.type)
                if kind is not None:
                    self.unexpected[each.name] = kind


def _parsed_with_more(docs: pa.BinaryArray, schema: pa.Schema) -> pa.Table | None:
    """All fields that there are, in one pass; None if anything at all is wrong."""
    if not len(docs):
        return schema.empty_table()
    whole = pa.ListArray.from_arrays(pa.array([0, len(docs)], pa.int32()), docs)
    block = pc.binary_join(whole, b"\n")[0].as_buffer()
    try:
        table = pj.read_json(
            pa.BufferReader(block),
            read_options=pj.ReadOptions(use_threads=False, block_size=block.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="infer"
            ),
        )
    except pa.ArrowInvalid:
        return None
    return table if table.num_rows == len(docs) else None


def infer_or_none(samples: pa.BinaryArray) -> pa.Schema | None:
    """The schema that samples show, or None if they show none."""
    try:
        return infer(samples)
    except OptionsError:
        return None


def given_decoder(decode: str, schema_text: str) -> Decoder:
    """What decodes values by a schema that was given; raises OptionsError."""
    return decoder_for(decode, options={"schema": schema_text})


def given_fields(decode: str, schema_text: str) -> pa.Schema | None:
    """The fields that a topic's settings alone determine, None if they are to be inferred."""
    match decode:
        case "raw":
            return pa.schema([("value", pa.binary())])
        case "string":
            return decoder_for("string").schema
        case "json":
            return parse_schema(schema_text) if schema_text else None
        case _:
            return given_decoder(decode, schema_text).schema


def variants_of(columns: pa.Schema, field: str) -> list[str]:
    """The columns that hold values of a field, in the order in which they are tried."""
    others = []
    for name in columns.names:
        match = _VARIANT.fullmatch(name)
        if match and match[1] == field:
            others.append((int(match[2]), name))
    return [field, *(name for _, name in sorted(others))]


def column_for(columns: pa.Schema, field: pa.Field, table_format: str) -> str | None:
    """The column of a table that takes a field's type as it is, or None."""
    wanted = stored_type(field.type, table_format)
    for name in variants_of(columns, field.name):
        if name in columns.names and columns.field(name).type == wanted:
            return name
    return None


class ColumnDecoder:
    """Decodes values to the typed columns of a table; picklable.

    `fields` are those of a JSON topic whose schema was given, and `names` says which column a field
    goes to, where that is not its own. `own` are columns of the table that no field can have.
    `decoder` is that of any other kind of topic: it was made where the schema is, since a task may
    not have the file that it was read from.
    """

    def __init__(
        self,
        decode: str,
        columns: pa.Schema,
        *,
        decoder: Decoder | None = None,
        fields: pa.Schema | None = None,
        names: Mapping[str, str] | None = None,
        has_variants: bool = False,
        own: Collection[str] = frozenset(),
    ) -> None:
        self._decode, self.columns, self._given = decode, columns, decoder
        self._own = own
        self._fields, self._names = fields, dict(names or {})
        self._has_variants = has_variants
        self.conflicts: dict[str, pa.DataType] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _column_decoder, (
            self._decode,
            self.columns,
            self._given,
            self._fields,
            self._names,
            self._has_variants,
            self._own,
        )

    @property
    def unexpected(self) -> Mapping[str, pa.DataType]:
        """Fields that were met and have no column."""
        if self._decode != "json":
            return {}
        decoder = self._decoder
        return decoder.unexpected if isinstance(decoder, NoticingJsonDecoder) else {}

    @cached_property
    def _decoder(self) -> Decoder:
        if self._decode != "json":
            assert self._given is not None, f"who decodes {self._decode}?"
            return self._given
        if self._fields is None:
            return NoticingJsonDecoder(self.columns, self._own)
        return JsonDecoder(self._fields)

    def _column_of(self, field: str) -> str:
        return self._names.get(field, field)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """The table's columns for these values, and what is wrong with them."""
        if self._decode == "raw":
            batch = pa.record_batch([values], schema=self.columns)
            return Decoded(batch, pa.nulls(len(values), pa.string()))
        columns, errors = self._decoder.decode(values)
        decoded = Decoded(self._fitted(columns), errors)
        if self._has_variants and errors.null_count < len(values):
            decoded = self._tried_again(values, decoded)
        return self._without_refused(values, decoded)

    def _without_refused(self, values: pa.BinaryArray, decoded: Decoded) -> Decoded:
        """Rows with a field that no column can take are no rows: a part of them would be lost."""
        decoder = self._decoder
        if not isinstance(decoder, NoticingJsonDecoder) or not decoder.names.has_refused:
            return decoded
        decoder.names.has_refused = False  # The next values may have none of these.
        faults = pa.array(decoder.names.faults(values), pa.string())
        return Decoded(decoded.columns, pc.coalesce(decoded.errors, faults))

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the table's columns: renamed, cast, and null where it has none."""
        there = {self._column_of(name): name for name in batch.schema.names}
        arrays = [
            batch.column(there[each.name]).cast(each.type)
            if each.name in there
            else pa.nulls(batch.num_rows, each.type)
            for each in self.columns
        ]
        return pa.record_batch(arrays, schema=self.columns)

    # Rows that the schema refuses, field by field.

    def _tried_again(self, values: pa.BinaryArray, decoded: Decoded) -> Decoded:
        is_object = pc.is_null(_NO_FIELDS.decode(values).errors)
        may_decode = pc.fill_null(pc.not_equal(decoded.errors, TOO_DEEP), False)
        mask = pc.and_(may_decode, is_object)
        places = pc.indices_nonzero(mask)
        if not len(places):
            return decoded
        columns, is_whole = self._by_field(values.take(places))
        kept = places.filter(is_whole)
        if isinstance(self._decoder, NoticingJsonDecoder) and len(kept):
            whole = values.take(kept)
            self._decoder.notice(infer_or_none(whole))
            # Nothing is inferred of these, so that nobody has seen what of them has no column.
            if any(is_too_deep(text) for text in whole.to_pylist()):
                self._decoder.names.has_refused = True
        batch = _replaced(decoded.columns, columns.filter(is_whole), kept)
        is_kept = pa.array(_mask(len(values), kept))
        return Decoded(batch, pc.if_else(is_kept, pa.scalar(None, pa.string()), decoded.errors))

    def _by_field(self, values: pa.BinaryArray) -> tuple[pa.RecordBatch, pa.BooleanArray]:
        """Each field by the first of its columns that takes it, and which rows are whole."""
        arrays: dict[str, pa.Array] = {}
        is_whole = pa.array(np.ones(len(values), dtype=np.bool_))
        for field in self.columns.names:
            waiting = is_whole
            for name in variants_of(self.columns, field):
                kind = self.columns.field(name).type
                column, errors = _one_field(values, field, kind)
                takes = pc.and_(waiting, pc.is_null(errors))
                column = pc.if_else(takes, column, pa.scalar(None, kind))
                if name in arrays:
                    # The row has a value of its own for the other's column: one of them is lost.
                    is_clash = pc.and_(pc.is_valid(arrays[name]), pc.is_valid(column))
                    is_whole = pc.and_(is_whole, pc.invert(is_clash))
                    column = pc.coalesce(column, arrays[name])
                arrays[name] = column
                waiting = pc.and_(waiting, pc.invert(takes))
            self._notice_conflict(field, values.filter(waiting))
            is_whole = pc.and_(is_whole, pc.invert(waiting))
        batch = pa.record_batch([arrays[each.name] for each in self.columns], schema=self.columns)
        return batch, is_whole

    def _notice_conflict(self, field: str, values: pa.BinaryArray) -> None:
        seen = infer_or_none(values) if len(values) else None
        if seen is None or field not in seen.names or field in self.conflicts:
            return
        known = variants_of(self.columns, field)
        kind = seen.field(field).type
        is_new = all(with_fields(self.columns.field(each).type, kind) is None for each in known)
        if is_new and len(known) < VARIANTS_MAX:
            self.conflicts[field] = kind


def _column_decoder(
    decode: str,
    columns: pa.Schema,
    decoder: Decoder | None,
    fields: pa.Schema | None,
    names: Mapping[str, str],
    has_variants: bool,
    own: Collection[str],
) -> ColumnDecoder:
    return ColumnDecoder(
        decode,
        columns,
        decoder=decoder,
        fields=fields,
        names=names,
        has_variants=has_variants,
        own=own,
    )


def _one_field(
    values: pa.BinaryArray, field: str, kind: pa.DataType
) -> tuple[pa.Array, pa.StringArray]:
    decoded = JsonDecoder(pa.schema([(field, kind)])).decode(values)
    return decoded.columns.column(0), decoded.errors


def _mask(count: int, places: pa.Array) -> Any:
    mask = np.zeros(count, dtype=np.bool_)
    mask[places.to_numpy(zero_copy_only=False)] = True
    return mask


def _replaced(batch: pa.RecordBatch, better: pa.RecordBatch, places: pa.Array) -> pa.RecordBatch:
    """The batch with some rows taken from another."""
    if not better.num_rows:
        return batch
    indices = np.arange(batch.num_rows)
    indices[places.to_numpy(zero_copy_only=False)] = batch.num_rows + np.arange(better.num_rows)
    return pa.concat_batches([batch, better]).take(pa.array(indices))
