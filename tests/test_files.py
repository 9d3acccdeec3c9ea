"""A file is written whole or not at all. That a kill does no harm is shown in test_checkpoint."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gptedu.files import only_writer, write_whole


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


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits")
def test_a_full_disk_is_said_kindly_and_loses_nothing(tmp_path: Path) -> None:
    """The system itself refuses to write on: files of this process may hold 4,096 bytes."""
    code = (
        "import resource, signal, sys; from pathlib import Path; "
        "from gptedu.files import write_whole; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
        "path = Path(sys.argv[1]); write_whole(path, b'old'); write_whole(path, b'x' * 100_000)"
    )
    file = tmp_path / "a.bin"
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "a.bin was not written (File too large)" in done.stderr
    assert "It needs 100,000 bytes: make room" in done.stderr
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_locked_folder_refuses_a_second_run_until_the_first_is_dead(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from gptedu.files import only_writer; "
        "lock = only_writer(Path(sys.argv[1])); print('locked', flush=True); time.sleep(600)"
    )
    folder = tmp_path / "run"
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        (folder / "x.safetensors.1.2.partial").write_bytes(b"half of it")
        with pytest.raises(ValueError, match=r"another run is writing into .*another `out`"):
            only_writer(folder)
        assert len(list(folder.glob("*.partial"))) == 1  # it may be the other's
        other.kill()
    lock = only_writer(folder)
    assert list(folder.glob("*.partial")) == []
    lock.release()
    only_writer(folder).release()
