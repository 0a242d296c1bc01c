"""The columns of a topic's table: as its settings say, and as the table has come to be.

The table is the memory. A schema that was changed since is compared with it: new fields become
columns, and what Iceberg can widen is widened. A field of another type goes to a column of another
name, or, by policy, is read as the table has it, so that what does not fit is a dead letter.
"""

from collections.abc import Collection, Mapping
from typing import Final

import pyarrow as pa

from chronik.spark.decode.json_depth import NESTED_MAX
from chronik.spark.errors import OptionsError
from chronik.spark.lake.partitioning import parse_partitioning
from chronik.spark.lake.schemas import (
    SYSTEM_COLUMNS,
    compare,
    leaf_count,
    nesting,
    other_name,
    stored_type,
)
from chronik.spark.lake.table import LakeError, LakeTable, TableState
from chronik.spark.lake.warehouse import DEAD_LETTERS
from chronik.spark.pipeline.columns import ColumnDecoder, column_for, given_decoder, given_fields
from chronik.spark.pipeline.config import TopicConfig
from chronik.spark.pipeline.names import OWN_COLUMNS, FieldNames, is_name, own_columns

COLUMNS_MAX: Final = 500  # a topic with more fields than this has data for names


def check_config(config: TopicConfig) -> None:
    """Raise LakeError if a topic's settings cannot be carried out."""
    if config.name.endswith(DEAD_LETTERS):
        raise LakeError(
            f"topic {config.name} has the name of a table of dead letters: give it another one"
        )
    try:
        given = given_fields(config.decode, config.schema)
    except OptionsError as error:
        raise LakeError(f"chronik.schema: {error}") from None
    if given is not None:
        checked(given, config.name)
    parse_partitioning(config.partition_by)


def checked(columns: pa.Schema, name: str, *, has_system: bool = False) -> pa.Schema:
    """The columns, or LakeError if a table cannot have them together."""
    taken = set() if has_system else {each.lower() for each in SYSTEM_COLUMNS.names}
    for each in columns:
        if each.name.lower() in taken:
            raise LakeError(
                f"topic {name} has a field {each.name!r} that a table cannot have beside another "
                "column of that name, whatever its case: name the fields in chronik.schema"
            )
        if not is_name(each.name):
            raise LakeError(
                f"topic {name} has a field {each.name!r}, which no column can be called: name the "
                "other fields in chronik.schema, or set chronik.decode=string"
            )
        if nesting(each.type) > NESTED_MAX:
            raise LakeError(
                f"topic {name} has a field {each.name!r} that is nested deeper than {NESTED_MAX} "
                "levels, which tables do not take: leave its depths out of chronik.schema, or set "
                "chronik.decode=string"
            )
        taken.add(each.name.lower())
    if sum(leaf_count(each.type) for each in columns) > COLUMNS_MAX:
        raise LakeError(
            f"topic {name} has more than {COLUMNS_MAX} different fields, so that its field names "
            "seem to be data: give chronik.schema, with a MAP for them, or set "
            "chronik.decode=string"
        )
    return columns


def typed_columns(table: LakeTable, state: TableState) -> pa.Schema:
    """The columns of a table that come from values."""
    ours = own_columns(table.partitioning if table.format == "delta" else ())
    return pa.schema([field for field in state.schema if field.name not in ours])


def adopt_given(config: TopicConfig, table: LakeTable) -> None:
    """Bring a table to a schema that was given or changed after it was created."""
    given = given_fields(config.decode, config.schema)
    if given is None:
        return
    schema = table.load().schema
    difference = compare(schema, checked(given, config.name), table.format)
    added = list(difference.added)
    for field in difference.conflicts:
        if config.on_incompatible == "column":
            if column_for(schema, field, table.format) is None:
                added.append(pa.field(other_name(field.name, schema.names), field.type))
        elif config.decode != "json":
            raise LakeError(
                f"table {table.name} has a column {field.name} of type "
                f"{schema.field(field.name).type}, and chronik.schema says {field.type}: set "
                "chronik.on_incompatible=column to have a column of another name for it"
            )
    if added or difference.widened:
        table.evolve(pa.schema(added), pa.schema(difference.widened))


def usable(fields: pa.Schema, own: Collection[str]) -> pa.Schema:
    """Those of the fields that a table can have as columns, the first of those that clash."""
    names = FieldNames(pa.schema([]), own)
    kinds = ((each.name, names.addition(each.name, each.type)) for each in fields)
    return pa.schema([(name, kind) for name, kind in kinds if kind is not None])


def column_decoder(
    config: TopicConfig,
    columns: pa.Schema,
    table_format: str,
    own: Collection[str] = OWN_COLUMNS,
) -> ColumnDecoder:
    """What decodes a topic's values to the typed columns of its table."""
    given = given_fields(config.decode, config.schema)
    if given is None:
        has_variants = config.on_incompatible == "column"
        return ColumnDecoder(config.decode, columns, has_variants=has_variants, own=own)
    names = _renamed(given, columns, table_format)
    fields = pa.schema([_readable(each, columns, names, table_format) for each in given])
    is_ours = config.decode in ("raw", "json")
    decoder = None if is_ours else given_decoder(config.decode, config.schema)
    return ColumnDecoder(config.decode, columns, decoder=decoder, fields=fields, names=names)


def _renamed(given: pa.Schema, columns: pa.Schema, table_format: str) -> Mapping[str, str]:
    """The fields whose type is that of another column than the one of their name."""
    found = ((each.name, column_for(columns, each, table_format)) for each in given)
    return {name: column for name, column in found if column is not None and column != name}


def _readable(
    field: pa.Field, columns: pa.Schema, names: Mapping[str, str], table_format: str
) -> pa.Field:
    """A field as values are read: as it was given, unless the table has it otherwise."""
    if field.name in names or field.name not in columns.names:
        return field
    column = columns.field(field.name)
    same = compare(pa.schema([column]), pa.schema([field]), table_format).is_none
    return field if same or stored_type(field.type, table_format) == column.type else column
