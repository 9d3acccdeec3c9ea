"""Files that are whole: all of the new content stands under a name, or the old one still does.

Chapter 9. The bytes go to a file beside the old one, are forced to the disk, and are renamed over
it; a rename happens whole or not at all. Left out: locks between two writers; the last one wins.
"""

import os
import threading
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """All of it or nothing, even when two write at once or one is killed; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
