"""Whose data directory this is, and the secret that it shares with the other nodes.

    node.json   the cluster, the node and the directory, by their ids
    secret      the cluster's secret, readable by this user only

A node that was given no secret, and founds no cluster with others, makes one: so it can be joined
at any time by a node that is given it. What a node was given is kept, so that its next start needs
no more than its directory.

Invariant: node.json names a cluster only once this node has formed it, or was admitted to it.
Before it asks to be, the directory's id is written down: after a crash it asks as the same one.
"""

import logging
import secrets
import uuid
from typing import Final

import msgspec

from chronik.metadata.image import id_text
from chronik.storage.disk import Disk

logger = logging.getLogger(__name__)

DATA_FORMAT: Final = 1
SECRET_BYTES: Final = 32  # as many as the digest that it is used for


class WrongDirectory(Exception):
    """The data directory is not one that this node can use; one line says why."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The content of node.json."""

    format: int = DATA_FORMAT
    cluster_id: str = ""
    node_id: int = -1
    directory_id: str
    # Of a node that was admitted: where the members were then. It finds them there until its own
    # log tells more, and before that it is nobody's voter.
    is_joined: bool = False
    members: dict[int, tuple[str, int]] = {}


def read_identity(
    disk: Disk, data_dir: str, node_id: int | None, *, finds_others: bool
) -> Identity:
    """Whose directory this is, or that of a node without a cluster; else WrongDirectory."""
    path = _path(data_dir)
    if not disk.exists(path):
        fresh = Identity(directory_id=id_text(uuid.uuid4().bytes))
        if finds_others:
            write_identity(disk, data_dir, fresh)
        return fresh
    try:
        data = bytes(disk.pread(path, disk.size(path), 0))
        identity = msgspec.json.decode(data, type=Identity)
    except msgspec.MsgspecError as error:
        raise WrongDirectory(f"{path} cannot be read: {error}") from None
    if identity.format != DATA_FORMAT:
        raise WrongDirectory(f"{path}: data format {identity.format}; this is {DATA_FORMAT}")
    if not identity.cluster_id and not finds_others:
        # It may have been let in, and died before it heard of it.
        raise WrongDirectory(
            f"{data_dir} is that of a node which asked for a cluster: start it with --join or its"
            " peers again, or with another --data-dir"
        )
    if identity.cluster_id and node_id not in (None, identity.node_id):
        raise WrongDirectory(
            f"{data_dir} belongs to node {identity.node_id}; give --node-id "
            f"{identity.node_id} or another --data-dir"
        )
    return identity


def write_identity(disk: Disk, data_dir: str, identity: Identity) -> None:
    """Claim a directory."""
    disk.write_durably(_path(data_dir), msgspec.json.encode(identity))


def _path(data_dir: str) -> str:
    return f"{data_dir}/node.json"


class Secret:
    """The cluster's secret: as given, as kept, or none; made, for a node that looks for no others.

    What was given is kept once it has turned out to be the cluster's, so that a wrong one does not
    take the place of the right one.
    """

    def __init__(self, disk: Disk, data_dir: str, given: str | None, *, finds_others: bool) -> None:
        self._disk = disk
        self._path = secret_path(data_dir)
        self._kept = self._read()
        if given is not None:
            self.value = given.encode()
        elif self._kept is not None:
            self.value = self._kept
        else:
            self.value = b"" if finds_others else secrets.token_hex(SECRET_BYTES).encode()

    def _read(self) -> bytes | None:
        if not self._disk.exists(self._path):
            return None
        return bytes(self._disk.pread(self._path, self._disk.size(self._path), 0)).strip()

    def maybe_keep(self) -> bool:
        """The same as far as the disk lets it be; whether it is kept now."""
        try:
            self.keep()
        except OSError as error:
            logger.warning("secret not kept yet", extra={"error": str(error)})
            return False
        return True

    def keep(self) -> None:
        """Have it at the next start, whether or not it is given then."""
        if self.value != self._kept:
            # The file is made private before it has content, and is renamed as it is.
            self._disk.write(f"{self._path}.tmp", b"")
            self._disk.make_private(f"{self._path}.tmp")
            self._disk.write_durably(self._path, self.value)
            self._kept = self.value


def secret_path(data_dir: str) -> str:
    """The file of the secret."""
    return f"{data_dir}/secret"
