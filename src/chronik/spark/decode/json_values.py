"""JSON objects as typed columns, by Arrow's block reader.

The values are joined by newlines and parsed as one block. Rows cannot shift, by this argument: each
value that is joined begins with `{` and ends with `}`. Between two values the parser therefore sees
`}`, a newline and `{`, which JSON allows only between two documents (a string cannot contain a
newline). So every value is one or more whole documents, and if there are as many rows as values,
each is exactly one.

What the block reader refuses is looked for in three steps, each rarer and slower than the last:
msgspec reads every value by the same types, three times as fast as Arrow, and finds nearly all that
is malformed or of the wrong type, and where; timestamps are read as text and converted with more
patience; then Arrow's own complaint names a row, or halving finds it.

Invariants
    A value's verdict never depends on its neighbours. What msgspec refuses and Arrow would take
    (NaN and Infinity, which Spark takes too, and nesting deeper than a thousand) is left to Arrow.

Defined: fields beside the schema's are dropped; a missing field is null; a field that comes twice
is an error. JSON's own null, arrays and scalars are no objects, so an error; space around an object
is allowed, a byte order mark is not. Where a column holds a map, msgspec reads every value first:
then NaN is an error, and of a map's field or key that comes twice the last one counts.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from chronik.spark.decode.decoder import Decoded, Rows, error_column, nullable, record_batch, spread
from chronik.spark.decode.framing import spans_of, unframed
from chronik.spark.decode.json_types import (
    check_type,
    convert,
    from_objects,
    has_map,
    has_timestamp,
    object_type,
    read_type,
)
from chronik.spark.decode.strings import not_texts

# Arrow's block size is a 32-bit number, and its memory a few times the block.
BLOCK_BYTES_MAX: Final = 64 * 1024 * 1024
# While looking for a bad row: more of them would be joined again for each one that is found.
HUNT_ROWS: Final = 512
GROUP_ROWS: Final = 16  # read by one call of msgspec, and one by one where any is bad
SHOWN_CHARS: Final = 80
_SPACE: Final = b" \t\r\n"
_BRACES: Final = (ord("{"), ord("}"))
_ROW: Final = re.compile(r" in row (\d+)$")
_PREFIX: Final = "JSON parse error: "
_ARROW_DECIDES: Final = (b"NaN", b"Inf")


class JsonDecoder:
    """Reads objects by a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        for column in schema:
            check_type(column.name, column.type)
        self.schema = nullable(schema)
        # What the last values were like: the next begin with what these needed in the end. It is
        # slower than where all is well, faster than to fail first, and the result is the same.
        self._times_are_text = False  # Some had timestamps that only `json_types` reads, or nobody.
        self._has_refused = False  # Some were refused by msgspec.

    def __reduce__(self) -> tuple[type["JsonDecoder"], tuple[pa.Schema]]:
        return JsonDecoder, (self.schema,)  # The rest is made anew where it is unpickled.

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """As many rows as there are values."""
        if values.nbytes > BLOCK_BYTES_MAX and len(values) > 1:
            middle = len(values) // 2
            halves = self.decode(values.slice(0, middle)), self.decode(values.slice(middle))
            return Decoded(
                pa.concat_batches([half.columns for half in halves]),
                pa.concat_arrays([half.errors for half in halves]),
            )
        found = _Candidates(unframed(values), self._object)
        arrays = self._read(found)
        arrays = spread(arrays, found.rows, len(values))
        columns = record_batch(arrays, self.schema, len(values))
        return Decoded(columns, error_column(found.errors, len(values)))

    @cached_property
    def _by_arrow(self) -> pa.Schema:
        return pa.schema([each for each in self.schema if not has_map(each.type)])

    @cached_property
    def _by_msgspec(self) -> pa.Schema:
        return pa.schema([each for each in self.schema if has_map(each.type)])

    @cached_property
    def _mapped(self) -> "msgspec.json.Decoder[Any]":
        return msgspec.json.Decoder(object_type(self._by_msgspec))

    @cached_property
    def _object(self) -> "msgspec.json.Decoder[Any]":
        return msgspec.json.Decoder(object_type(self.schema))

    def _read(self, found: "_Candidates") -> list[pa.Array]:
        """The columns of the rows that are left when all others have an error."""
        objects: list[Any] = []
        if len(self._by_msgspec) or not len(self.schema):
            objects = found.scan(self._mapped)
        if self._has_refused:
            self._has_refused = found.refused(self._object)
        table = self._parsed(found)
        if len(objects) > len(found.rows):
            objects = found.scan(self._mapped)  # Arrow refused some: few, and only once.
        bad: dict[int, str] = {}
        arrays = []
        for column in self.schema:
            index = self._by_msgspec.get_field_index(column.name)
            if index >= 0:
                read = [getattr(each, f"f{index}") for each in objects]
                array, refused = from_objects(read, column.type)
            else:
                read = table.column(column.name).combine_chunks()
                array, refused = convert(read, column.type)
            for place in refused.tolist():
                text = f"{column.name}: not a {column.type}: {read[place]}"
                bad.setdefault(place, text[:SHOWN_CHARS])
            arrays.append(array)
        self._times_are_text = _has_text_times(table, self._by_arrow)
        kept = found.drop(bad)
        return [array.filter(kept) for array in arrays] if bad else arrays

    def _parsed(self, found: "_Candidates") -> pa.Table:
        if not len(self._by_arrow):
            return pa.table({})
        schema = self._read_schema(as_text=self._times_are_text)
        result = _parse(found.docs, schema)
        if isinstance(result, str) and found.refused(self._object):
            self._has_refused = True
            result = _parse(found.docs, schema)
        if isinstance(result, pa.Table):
            return result
        schema = self._read_schema(as_text=True)
        tables, bad = _hunt(found.docs, schema)
        found.drop(bad)
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def _read_schema(self, *, as_text: bool) -> pa.Schema:
        return pa.schema(
            [
                each.with_type(read_type(each.type, timestamps_as_text=as_text))
                for each in self._by_arrow
            ]
        )


class _Candidates:
    """The values that may be one object each, which rows they are, and what the others are."""

    def __init__(self, values: pa.BinaryArray, reader: "msgspec.json.Decoder[Any]") -> None:
        self.errors: dict[int, str] = {}
        starts, lengths, data = spans_of(values)
        view = np.frombuffer(data, dtype=np.uint8)
        braced = lengths >= 2
        braced[braced] = (view[starts[braced]] == _BRACES[0]) & (
            view[starts[braced] + lengths[braced] - 1] == _BRACES[1]
        )
        not_text = not_texts(values)
        self.errors.update(not_text)
        braced[list(not_text)] = False
        self.rows: Rows = np.flatnonzero(braced)
        self.docs = values if len(self.rows) == len(values) else values.filter(pa.array(braced))
        others = np.flatnonzero((lengths >= 0) & ~braced)
        if len(others):
            self._add_stripped(
                values, [row for row in others.tolist() if row not in not_text], reader
            )

    def _add_stripped(
        self, values: pa.BinaryArray, rows: list[int], reader: "msgspec.json.Decoder[Any]"
    ) -> None:
        """Take those that are an object with space around it; the rest are errors."""
        kept: dict[int, bytes] = {}
        for row in rows:
            doc = values[row].as_py().strip(_SPACE)
            complaint = _complaint(reader, doc)
            if complaint is None and doc[:1] == b"{" and doc[-1:] == b"}":
                kept[row] = doc
            else:
                self.errors[row] = complaint or "not a JSON object"
        if kept:
            self.docs = pa.concat_arrays([self.docs, pa.array(kept.values(), pa.binary())])
            self.rows = np.concatenate([self.rows, np.array(list(kept), dtype=np.int64)])

    def drop(self, bad: Mapping[int, str]) -> pa.BooleanArray:
        """Give these places an error, and tell which are left."""
        kept = np.ones(len(self.rows), dtype=np.bool_)
        kept[list(bad)] = False
        for place, text in bad.items():
            self.errors[int(self.rows[place])] = text
        mask = pa.array(kept)
        if bad:
            self.rows = self.rows[kept]
            self.docs = self.docs.filter(mask)
        return mask

    def refused(self, reader: "msgspec.json.Decoder[Any]") -> bool:
        """Drop what msgspec refuses, and tell whether there was any."""
        bad = {}
        for place, doc in _suspects(self.docs, reader):
            complaint = _complaint(reader, doc)
            if complaint is not None:
                bad[place] = complaint
        self.drop(bad)
        return bool(bad)

    def scan(self, reader: "msgspec.json.Decoder[Any]") -> list[Any]:
        """The objects, as msgspec reads them; what it refuses is dropped."""
        objects = []
        bad = {}
        for place, doc in enumerate(self.docs.to_pylist()):
            try:
                objects.append(reader.decode(doc))
            except (msgspec.MsgspecError, RecursionError) as error:
                bad[place] = str(error)
        self.drop(bad)
        return objects


def _complaint(reader: "msgspec.json.Decoder[Any]", doc: bytes) -> str | None:
    """What msgspec has against a document, unless it is something for Arrow to decide."""
    try:
        reader.decode(doc)
    except msgspec.MsgspecError as error:
        if doc[:1] == b"{" and any(word in doc for word in _ARROW_DECIDES):
            return None
        return str(error) if doc else "empty"
    except RecursionError:
        return None
    return None


def _suspects(
    docs: pa.BinaryArray, reader: "msgspec.json.Decoder[Any]"
) -> Iterator[tuple[int, bytes]]:
    """The documents of all groups that msgspec does not read as one for each line."""
    block = memoryview(_joined(docs))
    _, lengths, _ = spans_of(docs)
    bounds = [0, *np.cumsum(lengths + 1).tolist()]
    for first in range(0, len(docs), GROUP_ROWS):
        last = min(first + GROUP_ROWS, len(docs))
        try:
            if len(reader.decode_lines(block[bounds[first] : bounds[last]])) == last - first:
                continue
        except (msgspec.MsgspecError, RecursionError):
            pass
        yield from enumerate(docs.slice(first, last - first).to_pylist(), first)


def _joined(docs: pa.BinaryArray) -> pa.Buffer:
    whole = pa.ListArray.from_arrays(pa.array([0, len(docs)], pa.int32()), docs)
    return pc.binary_join(whole, b"\n")[0].as_buffer()


def _parse(docs: pa.BinaryArray, schema: pa.Schema) -> pa.Table | str:
    """A row for each document, or why not."""
    if not len(docs):
        return schema.empty_table()
    block = _joined(docs)
    try:
        table = pj.read_json(
            pa.BufferReader(block),
            read_options=pj.ReadOptions(use_threads=False, block_size=block.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid as error:
        return str(error).removeprefix(_PREFIX)
    return table if table.num_rows == len(docs) else "more than one JSON document"


def _hunt(docs: pa.BinaryArray, schema: pa.Schema) -> tuple[list[pa.Table], dict[int, str]]:
    """The tables of all documents but the bad ones, in order, and what is wrong with those."""
    tables = []
    errors = {}
    pending = [
        (first, min(first + HUNT_ROWS, len(docs))) for first in range(0, len(docs), HUNT_ROWS)
    ][::-1]
    while pending:
        first, last = pending.pop()
        result = _parse(docs.slice(first, last - first), schema)
        if isinstance(result, pa.Table):
            tables.append(result)
        elif last - first == 1:
            errors[first] = _ROW.sub("", result)
        else:
            pending += reversed(_parts(first, last, result))
    return tables, errors


def _parts(first: int, last: int, complaint: str) -> list[tuple[int, int]]:
    """Where to look next: around the row that Arrow names, or in the halves."""
    named = _ROW.search(complaint)
    row = first + int(named[1]) if named else last
    if row < last:
        parts = [(first, row), (row, row + 1), (row + 1, last)]
    else:
        middle = (first + last) // 2
        parts = [(first, middle), (middle, last)]
    return [part for part in parts if part[0] < part[1]]


def _has_text_times(table: pa.Table, wanted: pa.Schema) -> bool:
    """Whether timestamps were read as text."""
    read = read_type(pa.struct(list(wanted)), timestamps_as_text=True)
    return pa.struct(list(table.schema)) == read and any(
        has_timestamp(each.type) for each in wanted
    )
