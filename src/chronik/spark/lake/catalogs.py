"""Iceberg's catalogs: the one that was named, or SQLite where none was.

A warehouse on a disk has its catalog beside the tables. SQLite cannot live in an object store, so
a warehouse there has it among the user's files on this machine. A second machine would begin
another catalog, unseen by the first, and the two would not refuse each other. So a catalog claims
its warehouse by an object that has its id.

Invariant
    Tables are created only by a catalog whose claim was the only one after it was made. Of two
    that claim at once each sees the other, or one of them does: that one takes its claim back.
"""

import hashlib
import os
import re
import socket
import sqlite3
import uuid
from collections.abc import Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chronik.spark.lake.storage import Storage
from chronik.spark.lake.table import LakeError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

CLAIMS: Final = "_chronik/catalogs"
WAIT_S: Final = 30  # Two pipelines may meet in the file: they wait rather than fail at once.


def open_catalog(
    storage: Storage, properties: Mapping[str, str], *, is_new: bool
) -> "Catalog | None":
    """The catalog of a warehouse; None if there is none yet, unless it `is_new`."""
    from pyiceberg.catalog import load_catalog

    url = storage.url
    reach = storage.store.iceberg_properties(url)
    if properties:
        return load_catalog("chronik", **{"warehouse": url, **reach, **properties})
    if storage.is_local:
        root = storage.path
        os.makedirs(root, exist_ok=True)
        file, url = Path(root, "catalog.db"), root
    else:
        file = catalog_file(url)
        if not _is_ours(storage, file, is_new=is_new):
            return None
    uri = f"sqlite:///{file}?timeout={WAIT_S}"
    return load_catalog("chronik", **{"type": "sql", "uri": uri, "warehouse": url, **reach})


def catalog_file(url: str) -> Path:
    """Where the catalog of a warehouse in an object store is, if none was named."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    name = re.sub(r"[^A-Za-z0-9]+", "-", url).strip("-")[:60]
    same = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:8]
    return Path(home, "chronik", "catalogs", f"{name}-{same}.db")


def _is_ours(storage: Storage, file: Path, *, is_new: bool) -> bool:
    """Whether the warehouse has this catalog; LakeError if it has another one."""
    if file.exists() or is_new:
        _claimed(storage, file)
        return True
    _refuse_others(storage, file, own="")
    return False


@lru_cache(maxsize=16)
def _claimed(storage: Storage, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    own = _identity(file)
    claim = f"{CLAIMS}/{own}"
    if storage.size(claim) is None:
        _refuse_others(storage, file, own=own)
        storage.write(claim, f"{socket.gethostname()}:{file}".encode())
    try:
        _refuse_others(storage, file, own=own)
    except LakeError:
        storage.delete(claim)
        raise


def _identity(file: Path) -> str:
    """The catalog's id: in the catalog itself, so that one made anew has another."""
    with closing(sqlite3.connect(file, timeout=WAIT_S)) as catalog, catalog:
        catalog.execute("create table if not exists chronik_catalog (one integer unique, id text)")
        catalog.execute("insert or ignore into chronik_catalog values (1, ?)", (uuid.uuid4().hex,))
        ((found,),) = catalog.execute("select id from chronik_catalog").fetchall()
    return str(found)


def _refuse_others(storage: Storage, file: Path, *, own: str) -> None:
    claims = storage.at(CLAIMS)
    for path, _, _ in claims.list():
        if path == own:
            continue
        raise LakeError(
            f"the Iceberg tables of {storage.url} are in the catalog "
            f"{claims.read(path).decode()}, and not in {file} here: run where it is, or move it "
            "to a place that all can reach and name that under [catalog] in the pipeline's "
            "configuration (type, uri, ...)"
        )
