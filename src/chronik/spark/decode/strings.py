"""Values as text: UTF-8, or an error."""

from dataclasses import dataclass, field

import pyarrow as pa

from chronik.spark.decode.decoder import Decoded, error_column
from chronik.spark.errors import OptionsError

_SCHEMA = pa.schema([("value", pa.string())])


@dataclass(frozen=True, slots=True)
class StringDecoder:
    """One column of text."""

    schema: pa.Schema = field(default=_SCHEMA)

    def __post_init__(self) -> None:
        if [each.type for each in self.schema] != [pa.string()]:
            raise OptionsError(
                f"decode=string gives one column of text, and not {self.schema.names}"
            )

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """The values as text."""
        errors: dict[int, str] = {}
        try:
            texts = values.cast(pa.string())
        except pa.ArrowInvalid:
            texts, errors = _one_by_one(values)
        columns = pa.RecordBatch.from_arrays([texts], schema=self.schema)
        return Decoded(columns, error_column(errors, len(values)))


def _one_by_one(values: pa.BinaryArray) -> tuple[pa.StringArray, dict[int, str]]:
    texts: list[str | None] = []
    errors = {}
    for row, value in enumerate(values.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            texts.append(None)
            errors[row] = not_utf8(error)
    return pa.array(texts, pa.string()), errors


def not_utf8(error: UnicodeDecodeError) -> str:
    """What is wrong with bytes that are no text."""
    return f"not UTF-8: {error.reason} (byte {error.start})"
