"""Style as a test: sizes, names, docstrings, dead modules, and what a file may not say."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "chronik"
MODULES = sorted(SOURCE.rglob("*.py"))
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
BANNED_NAMES = re.compile(
    r"(Manager|Helper|Util|Impl$|Base$|Processor|Unified|Integrated|^New|V2$)", re.ASCII
)
BANNED_WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# Modules that somebody finds by name and not by import.
ENTRY_POINTS = {"chronik.cli.main", "chronik.testing.pytest_plugin", "chronik.dashboard.server"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_module_is_tidy(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says what it is"
    lines = text.count("\n")
    assert lines <= FILE_LINES_MAX or "messages" in path.parts, f"{lines} lines"
    assert not BANNED_WORDS.search(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            assert not BANNED_NAMES.search(node.name), f"{node.name} is no name"


def test_no_module_is_dead() -> None:
    imported: set[str] = set()
    for path in [*MODULES, *(ROOT / "scripts").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
                imported.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
    packages = {module_name(path) for path in MODULES if path.name == "__init__.py"}
    dead = {module_name(path) for path in MODULES} - imported - packages - ENTRY_POINTS
    dynamic = {
        name
        for name in dead
        if any(f'"{name}' in path.read_text() for path in MODULES)  # imported lazily by name
    }
    assert not dead - dynamic


def test_only_the_disk_opens_files_or_syncs() -> None:
    for path in sorted((SOURCE / "storage").glob("*.py")):
        if path.name == "disk.py":
            continue
        text = path.read_text()
        assert not re.search(r"\bos\.(open|fsync|fdatasync)\(|(?<![.\w])open\(", text), path.name
