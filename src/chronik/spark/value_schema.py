"""Which fields the values of a read have: as its schema says, or as a sample of them shows.

Only JSON is inferred, from the first and the last records of some partitions: a topic's oldest
records and its newest are the likeliest to differ. A field that no sampled record has is not there;
a schema is the way to be sure. Nor is one whose name no column can have here: none, one of the
source's own, or one that differs from another only in case.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from chronik.spark.errors import SourceError
from chronik.spark.layout import ERROR, make_decoder, output_columns
from chronik.spark.log_facts import LogFacts
from chronik.spark.log_reader import LogReader
from chronik.spark.offset_range import OffsetRange
from chronik.spark.options import ReadOptions
from chronik.spark.resolution import find_spans, find_topics

if TYPE_CHECKING:
    from chronik.spark.decode import Decoder

# Enough to meet rare fields, and read in well under a second.
SAMPLE_OFFSETS: Final = 500
SAMPLE_PARTITIONS_MAX: Final = 8


def value_fields(options: ReadOptions) -> pa.Schema:
    """The fields of the values; none if they are not decoded."""
    if options.decode is None:
        return pa.schema([])
    return _decoder(options, "value", options.decode, options.schema).schema


def key_decoder_of(options: ReadOptions) -> "Decoder | None":
    """What decodes the keys, if they are decoded."""
    if options.decode_key is None:
        return None
    return _decoder(options, "key", options.decode_key, options.key_schema)


def _decoder(options: ReadOptions, column: str, format_name: str, schema: str | None) -> "Decoder":
    fields: pa.Schema | None = None
    if format_name == "json" and schema is None:
        fields = _inferred(options, column)
    return make_decoder(format_name, fields, schema)


def _inferred(options: ReadOptions, column: str) -> pa.Schema:
    from chronik.spark.decode import infer_schema

    samples = _samples(options, column)
    if samples.null_count == len(samples):
        option = "schema" if column == "value" else "keySchema"
        raise SourceError(
            f"{options.subscription} has no {column} yet to infer a schema from: give one by"
            f" .schema(...) or the option {option}"
        )
    own = {*output_columns(options), ERROR} if column == "value" else set()
    found = distinct_fields(infer_schema("json", samples), own)
    if not found:
        raise SourceError(
            f"no {column} of {options.subscription} has a field that can be a column: give a schema"
        )
    return pa.schema(found)


def distinct_fields(fields: Iterable[pa.Field], own: Collection[str] = ()) -> list[pa.Field]:
    """The fields that Spark can tell apart: with a name, not one of ours, the first of its case."""
    taken = {name.lower() for name in own}
    found = []
    for field in fields:
        kind = _distinct(field.type)
        if field.name and field.name.lower() not in taken and kind is not None:
            taken.add(field.name.lower())
            found.append(pa.field(field.name, kind))
    return found


def _distinct(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_list(kind):
        element = _distinct(kind.value_type)
        return None if element is None else pa.list_(kind.value_field.with_type(element))
    if pa.types.is_struct(kind):
        fields = distinct_fields(kind)
        return pa.struct(fields) if fields or not kind.num_fields else None
    return kind


def _samples(options: ReadOptions, column: str) -> pa.BinaryArray:
    found: list[pa.Array] = []
    with LogReader(options.connection) as reader:
        for each in _sampled_ranges(options):
            batches = reader.read(
                each,
                columns=[column],
                read_committed=options.read_committed,
                fail_on_data_loss=False,
            )
            found.extend(batch.column(column) for batch in batches)
    return pa.concat_arrays(found) if found else pa.array([], pa.binary())


def _sampled_ranges(options: ReadOptions) -> list[OffsetRange]:
    with LogFacts(options.connection) as facts:
        topics = find_topics(facts, options.subscription)
        found = find_spans(facts, topics, read_committed=options.read_committed)
    whole = [
        OffsetRange(name, topic.topic_id, partition, span.log_start_offset, span.end_offset)
        for name, topic in sorted(found.items())
        for partition, span in sorted(topic.spans.items())
        if span.end_offset > span.log_start_offset
    ]
    return [part for each in whole[:SAMPLE_PARTITIONS_MAX] for part in _ends(each)]


def _ends(whole: OffsetRange) -> list[OffsetRange]:
    """The first and the last offsets of a range."""
    head_end = min(whole.start_offset + SAMPLE_OFFSETS, whole.end_offset)
    tail_start = max(head_end, whole.end_offset - SAMPLE_OFFSETS)
    head, tail = replace(whole, end_offset=head_end), replace(whole, start_offset=tail_start)
    return [each for each in (head, tail) if each.start_offset < each.end_offset]
