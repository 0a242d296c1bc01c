"""Writes docs/APIS.md from the API table; with --check, only says whether it is up to date."""

import sys
from pathlib import Path

from chronik.protocol.apis import APIS, Api

PAGE = Path(__file__).parents[1] / "docs" / "APIS.md"

HEAD = """\
# APIs

Generated from `src/chronik/protocol/apis.py` by `scripts/apis_doc.py`: change the table there.

A client learns this list from ApiVersions and picks the highest version that both sides know. An
API that is not listed is not served. From the *first flexible* version on, messages have compact
lengths and tagged fields.

| key | API | versions | first flexible | what it does | behaviour |
|--:|---|---|--:|---|---|
"""


def render() -> str:
    """The page as it should be."""
    return HEAD + "".join(map(row, sorted(APIS.values(), key=lambda api: api.key)))


def row(api: Api) -> str:
    flexible = "" if api.flexible_since is None else api.flexible_since
    cells = (api.key, api.name, api.versions, flexible, api.summary, api.notes)
    return "".join(f"| {cell} " if cell != "" else "| " for cell in cells) + "|\n"


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit code is 1 if the check fails."""
    page = render()
    if arguments == ["--check"]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page:
            return 0
        print(f"{PAGE.name} is out of date: run scripts/apis_doc.py", file=sys.stderr)
        return 1
    if arguments:
        print("usage: apis_doc.py [--check]", file=sys.stderr)
        return 2
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
