"""What the API table says of one kind of request: its messages, its versions and their encoding.

The tables themselves are `apis` and, for groups and transactions, `coordinator_apis`.
"""

from dataclasses import dataclass
from typing import Final

from chronik.protocol.schema import Message, Versions

API_VERSIONS_KEY: Final = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One kind of request and its response."""

    key: int
    name: str
    request: type[Message]
    response: type[Message]
    versions: Versions
    flexible_since: int | None
    summary: str
    notes: str = ""

    def is_flexible(self, version: int) -> bool:
        """Whether this version has compact lengths and tagged fields."""
        return self.flexible_since is not None and version >= self.flexible_since

    def request_header_version(self, version: int) -> int:
        """2 if the header ends in tagged fields, else 1."""
        return 2 if self.is_flexible(version) else 1

    def response_header_version(self, version: int) -> int:
        """1 if the header ends in tagged fields, else 0."""
        # A client that asks for versions cannot know which header the answer will have.
        return 1 if self.is_flexible(version) and self.key != API_VERSIONS_KEY else 0
