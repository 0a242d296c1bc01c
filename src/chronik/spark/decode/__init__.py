"""Values become typed columns: text, JSON, Avro, Protobuf.

`decoder_for` chooses by the format's name. The schema is given as Arrow fields, or by the option
`schema` as the format's own text: for JSON Spark's DDL or the JSON of a StructType, for Avro its
JSON, for Protobuf `FILE#package.Message` with the file of a descriptor set. If both are given, the
fields say which of them are wanted.

Confluent's frame is recognised and left out (`framing`). Rows never shift (`decoder`).
"""

from collections.abc import Mapping

import pyarrow as pa

from chronik.spark.decode.decoder import Decoded as Decoded
from chronik.spark.decode.decoder import Decoder as Decoder
from chronik.spark.errors import OptionsError

FORMATS = ("string", "json", "avro", "protobuf")


def decoder_for(
    format: str, *, schema: pa.Schema | None = None, options: Mapping[str, str] | None = None
) -> Decoder:
    """What decodes values of a format. Raises OptionsError."""
    text = (options or {}).get("schema")
    match format:
        case "string":
            from chronik.spark.decode.strings import StringDecoder

            return StringDecoder() if schema is None else StringDecoder(schema)
        case "json":
            from chronik.spark.decode.json_values import JsonDecoder
            from chronik.spark.decode.schema_text import parse_schema

            if schema is None and text is None:
                raise OptionsError("decode=json needs a schema, given or inferred from samples")
            return JsonDecoder(parse_schema(text or "") if schema is None else schema)
        case "avro":
            from chronik.spark.decode.avro import AvroDecoder

            return AvroDecoder(_needed(text, "avro", "the schema as JSON"), wanted=schema)
        case "protobuf":
            from chronik.spark.decode.protobuf import ProtobufDecoder

            text = _needed(text, "protobuf", "FILE#package.Message with a descriptor set's file")
            return ProtobufDecoder.from_text(text, wanted=schema)
        case _:
            raise OptionsError(f"there is no format {format!r}, only {', '.join(FORMATS)}")


def _needed(text: str | None, format_name: str, what: str) -> str:
    if not text:
        raise OptionsError(f"decode={format_name} needs the option schema: {what}")
    return text


def infer_schema(format: str, samples: pa.BinaryArray) -> pa.Schema:
    """The schema that samples show; only JSON says what it is. Raises OptionsError."""
    if format == "string":
        return decoder_for("string").schema
    if format != "json":
        raise OptionsError(f"a schema of {format} cannot be inferred: give the option schema")
    from chronik.spark.decode.json_inference import infer

    return infer(samples)
