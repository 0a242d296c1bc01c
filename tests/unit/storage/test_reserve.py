"""Room that is kept for the metadata log."""

import os
from pathlib import Path

import pytest

from chronik.storage.disk import FileDisk
from chronik.storage.reserve import RESERVE_BYTES, Reserve


def test_it_takes_room_and_gives_it_back(tmp_path: Path) -> None:
    disk = FileDisk()
    reserve = Reserve(disk, str(tmp_path))
    assert not reserve.is_held
    assert reserve.take()
    found = os.stat(tmp_path / "reserve")
    assert found.st_size == RESERVE_BYTES
    assert found.st_blocks * 512 >= RESERVE_BYTES, "it is more than a size"
    assert Reserve(disk, str(tmp_path)).is_held, "it outlives a restart"
    reserve.give_up()
    assert not reserve.is_held
    assert list(tmp_path.iterdir()) == []
    disk.close()


def test_without_room_nothing_of_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FileDisk()

    def allocate(path: str, size: int) -> None:
        disk.write(path, b"some of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "allocate", allocate)
    reserve = Reserve(disk, str(tmp_path))
    assert not reserve.take()
    assert list(tmp_path.iterdir()) == []
    disk.close()


@pytest.mark.parametrize(("free_bytes", "stays"), [(0, False), (1 << 30, True)])
def test_a_start_on_a_full_disk_gives_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, stays: bool
) -> None:
    disk = FileDisk()
    Reserve(disk, str(tmp_path)).take()
    monkeypatch.setattr(disk, "free_bytes", lambda directory: free_bytes)
    reserve = Reserve(disk, str(tmp_path))
    reserve.make_room_to_start()
    assert reserve.is_held == stays
    disk.close()
