"""`pytest tests/scenarios --rewrite` writes what happens into the scripts: read the diff."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what happens into the scripts")
