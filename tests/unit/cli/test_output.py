"""Tables and sizes."""

import pytest

from chronik.cli.output import print_table, size_text


def test_plain_tables_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "COUNT", "RACK"), [("a", 5, None), ("longer", 100, "r1")])
    assert capsys.readouterr().out == (
        "NAME    COUNT  RACK\n"
        "a           5  -\n"
        "longer    100  r1\n"
    )  # fmt: skip


def test_an_empty_table_has_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "COUNT"), [])
    assert capsys.readouterr().out == "NAME  COUNT\n"


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, None), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**50, "1024.0 TiB")],
)
def test_sizes(size: int | None, text: str | None) -> None:
    assert size_text(size) == text
