"""Files that are whole: all of the new content stands under a name, or the old one still does.

Chapter 9. The bytes go to a file beside the old one, are forced to the disk, and are renamed over
it; a rename happens whole or not at all. A folder that a run writes into is locked, so that a
second run cannot mix its files with those of the first.
"""

import os
import threading
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = "run.lock"


def write_whole(path: Path, content: bytes) -> None:
    """All of it or nothing, even when two write at once or one is killed; makes the folder.

    Raises:
        OSError: the disk is full or cannot be written; what was there before is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{path} was not written ({error.strerror or error}); nothing that stood there before "
            f"is lost. It needs {len(content):,} bytes: make room, or choose another folder",
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def only_writer(folder: Path) -> FileLock:
    """Lock a folder for this run and clear away what a killed one left half written.

    The lock ends with `release()` or with the process, however that ends.

    Raises:
        ValueError: another run holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ValueError(
            f"another run is writing into {folder}. Wait until it ends, stop it, or choose another "
            "`out`: two runs in one folder would overwrite each other's checkpoints"
        ) from error
    for leftover in folder.glob("*.partial"):
        leftover.unlink(missing_ok=True)
    return lock
