"""Execute notebooks and store them in one normal form, so that equal runs give equal bytes.

    python book/_tools/execute_notebooks.py                     # every chapter and solution
    python book/_tools/execute_notebooks.py notebooks/03_attention.ipynb

Widgets' states are left out (they belong to a running kernel), as are times and versions. A cell's
id is a fingerprint of its source, so an edit changes the ids of no other cell.
"""

import hashlib
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
KEPT_CELL_METADATA = {"tags", "mystnb", "slideshow"}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "pygments_lexer": "ipython3",
    },
}


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Run every cell, in order, in a fresh kernel that works in `folder`."""
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    # nbclient would answer an Output widget (`interact` has one) on the channel on which it waits
    # for the cell's reply; now and then that reply is then never seen, and the run waits for ever.
    client.comm_open_handlers["jupyter.widget"] = lambda message: None
    client.execute()


def normalise(notebook: nbformat.NotebookNode) -> None:
    """Keep what teaches: sources, outputs, tags. Drop what belongs to one machine or one run."""
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        cell.metadata = {k: v for k, v in cell.metadata.items() if k in KEPT_CELL_METADATA}
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        seen[digest] = seen.get(digest, 0) + 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        for output in cell.get("outputs", []):
            if output.get("data", {}).pop(WIDGET_VIEW, None) and "text/html" not in output.data:
                output.data.clear()  # a control or progress bar: dead without its kernel
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("data", True)]
        if "remove-output" in cell.metadata.get("tags", []):
            cell.outputs = []  # a control's picture: neither the page nor the tests show it


def store(path: Path) -> bool:
    """Execute a notebook and write it in its normal form; says how long it took. False: failed."""
    notebook = nbformat.read(path, as_version=4)
    start = time.perf_counter()
    try:
        execute(notebook, path.parent)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        print(f"{path}: a cell failed, nothing was written\n{error}", file=sys.stderr, flush=True)
        return False
    normalise(notebook)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    seconds = time.perf_counter() - start
    print(f"{path.name:28} {seconds:6.1f} s {path.stat().st_size / 1024:8.0f} kB", flush=True)
    return True


def main(paths: list[Path]) -> int:
    """All of them, two at a time; with a thread each they do not get into each other's way."""
    if len(paths) > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(max_workers=2) as pool:
        return 0 if all(list(pool.map(store, paths))) else 1


if __name__ == "__main__":
    chosen = [Path(argument) for argument in sys.argv[1:]]
    sys.exit(main(chosen or sorted(NOTEBOOKS.rglob("[0-9]*.ipynb"))))
