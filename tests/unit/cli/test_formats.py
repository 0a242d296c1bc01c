"""Bytes and times as people type and read them."""

import pytest

from chronik.cli.formats import Format, decode, encode, parse_time_ms, show, time_text


@pytest.mark.parametrize(
    ("form", "typed", "data"),
    [
        (Format.TEXT, "grüße".encode(), "grüße".encode()),
        (Format.JSON, b'{"a": [1, null]}', b'{"a": [1, null]}'),
        (Format.HEX, b"00ff", b"\x00\xff"),
        (Format.BASE64, b"AP8=", b"\x00\xff"),
    ],
)
def test_what_is_typed_is_shown_again(form: Format, typed: bytes, data: bytes) -> None:
    assert encode(typed, form) == data
    assert show(data, form) == typed.decode()


@pytest.mark.parametrize(
    ("form", "typed"), [(Format.JSON, b"{"), (Format.HEX, b"0g"), (Format.BASE64, b"A")]
)
def test_what_is_not_in_the_format_is_refused(form: Format, typed: bytes) -> None:
    with pytest.raises(ValueError):
        encode(typed, form)


def test_null_and_bytes_that_are_not_text() -> None:
    assert show(None, Format.TEXT) == "null"
    assert decode(None, Format.JSON) is None
    assert show(b"a\xff", Format.TEXT) == "a\\xff"
    assert decode(b"no json", Format.JSON) == "no json"
    assert decode(b'{"a": 1}', Format.JSON) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("-30s", 970_000),
        ("-1.5m", 910_000),
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01T01:00:01+01:00", 1_000),
        ("1970-01-02", 86_400_000),
    ],
)
def test_times(text: str, expected_ms: int) -> None:
    assert parse_time_ms(text, now_ms=1_000_000) == expected_ms


@pytest.mark.parametrize("text", ["", "-", "-10", "-10x", "yesterday"])
def test_wrong_times(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time_ms(text, now_ms=0)


def test_timestamps() -> None:
    assert time_text(1_500) == "1970-01-01T00:00:01.500Z"
    assert time_text(-1) is None
