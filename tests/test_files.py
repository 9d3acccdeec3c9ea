"""A file is written whole or not at all. That a kill does no harm is shown in test_checkpoint."""

import os
import threading
from pathlib import Path

import pytest

from gptedu.files import write_whole


def test_the_content_is_there_and_nothing_else(tmp_path: Path) -> None:
    write_whole(tmp_path / "new" / "a.bin", b"one")
    write_whole(tmp_path / "new" / "a.bin", b"two")
    assert (tmp_path / "new" / "a.bin").read_bytes() == b"two"
    assert len(list((tmp_path / "new").iterdir())) == 1


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_what_was_there_stays_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    write_whole(tmp_path / "a.bin", b"old")
    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="no space"):
        write_whole(tmp_path / "a.bin", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_two_at_once_leave_the_whole_of_one(tmp_path: Path) -> None:
    contents = [bytes([i]) * 200_000 for i in range(8)]
    threads = [
        threading.Thread(target=write_whole, args=(tmp_path / "a.bin", content))
        for content in contents
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (left,) = tmp_path.iterdir()
    assert left.read_bytes() in contents
