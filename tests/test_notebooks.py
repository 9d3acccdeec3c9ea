"""Every notebook is run again, and every stored output compared with what the run gives.

nbval does it, in a pytest of its own, with a kernel that cannot reach the network. The other tests
look at the stored file: is it whole, in its normal form, and as short as the style asks?
"""

import copy
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
SOLUTIONS = sorted((ROOT / "notebooks" / "solutions").glob("[0-9][0-9]_*.ipynb"))
every_notebook = pytest.mark.parametrize(
    "path", CHAPTERS + SOLUTIONS, ids=lambda path: str(path.relative_to(ROOT / "notebooks"))
)
EXTRAS = {"14_find_the_bug"}  # no concept of its own, so none of a chapter's parts
every_chapter = pytest.mark.parametrize(
    "path", [path for path in CHAPTERS if path.stem not in EXTRAS], ids=lambda path: path.stem
)

# Parts of every chapter, as a heading or the title of a box. Their order is the author's, except
# that each of IN_ORDER stands after the one before.
SKELETON = [
    "you will be able to",
    "by hand",
    "from scratch",
    "proof",
    "look inside",
    "experiment",
    "what we left out",
    "summary",
    "exercises",
    "to read on",
]
IN_ORDER = ["by hand", "from scratch", "proof", "summary", "exercises", "to read on"]
NOT_COMPARED = {"nbval-ignore-output", "nbval-skip"}
NOWHERE = "http://127.0.0.1:9"  # nobody listens there: a download fails at once, and aloud


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def prose_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in read(path).cells if cell.cell_type == "markdown"]


def tags(cell: nbformat.NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", []))


def test_there_are_notebooks() -> None:
    assert len(CHAPTERS) >= 3
    assert [path.name for path in CHAPTERS] == [path.name for path in SOLUTIONS]


# The run -----------------------------------------------------------------------------------------


@every_notebook
def test_outputs_hold(path: Path, request: pytest.FixtureRequest) -> None:
    """Run by nbval. Without Tiny Shakespeare, notebooks that read it run, and are not compared."""
    compared = True
    if any("tiny_shakespeare" in cell.source for cell in code_cells(path)):
        try:
            request.getfixturevalue("tiny_shakespeare")
        except pytest.skip.Exception:
            compared = False
    command = [sys.executable, "-m", "pytest", str(path), "--nbval" if compared else "--nbval-lax"]
    command += ["--nbval-current-env", "--nbval-cell-timeout=1200"]
    command += [f"--nbval-sanitize-with={ROOT / 'tests' / 'nbval_sanitize.cfg'}"]
    command += ["-q", "--no-header", "--color=no", "-p", "no:socket", "-p", "no:cacheprovider"]
    command += ["-o", "addopts=", "-o", "filterwarnings=default"]  # a kernel is not our own code
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), NOWHERE)
    environment = os.environ | proxies | {"NO_PROXY": "localhost,127.0.0.1"}
    if "PYTEST_XDIST_WORKER" in os.environ:  # other tests run beside it
        environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    if not compared:
        pytest.skip("runs, but its outputs were not compared: Tiny Shakespeare is not here")


# The stored file ---------------------------------------------------------------------------------


def normal_form(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    file = ROOT / "book" / "_tools" / "execute_notebooks.py"
    spec = importlib.util.spec_from_file_location("execute_notebooks", file)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    normal = copy.deepcopy(notebook)
    tool.normalise(normal)
    return normal


@every_notebook
def test_is_stored_in_normal_form(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    normal = nbformat.writes(normal_form(notebook)) + "\n"
    same = normal == path.read_text(encoding="utf-8")
    assert same, f"store it in its normal form: make notebooks NB={path.relative_to(ROOT)}"


@every_notebook
def test_was_run_from_top_to_bottom(path: Path) -> None:
    counts = [cell.execution_count for cell in code_cells(path) if cell.source.strip()]
    assert counts
    in_order = counts == list(range(1, len(counts) + 1))
    assert in_order, f"make notebooks NB={path.relative_to(ROOT)}"


@every_notebook
def test_has_no_error_but_those_announced(path: Path) -> None:
    for cell in code_cells(path):
        for output in cell.outputs:
            if "raises-exception" not in tags(cell):
                assert output.output_type != "error", f"{output.ename} in:\n{cell.source}"


@every_notebook
def test_pictures_have_alternative_text(path: Path) -> None:
    for cell in code_cells(path):
        drawn = any(
            kind.startswith("image/") for out in cell.outputs for kind in out.get("data", {})
        )
        if drawn and not tags(cell) & {"remove-output", "remove-cell"}:
            text = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
            assert len(text.split()) >= 5, f"say what the picture shows (image.alt):\n{cell.source}"


@every_notebook
def test_a_cell_that_is_not_compared_says_why(path: Path) -> None:
    for cell in code_cells(path):
        if tags(cell) & NOT_COMPARED and "interact(" not in cell.source:  # a control needs a kernel
            assert "#" in cell.source, f"a comment should say what differs:\n{cell.source}"


@every_notebook
def test_first_cell_is_the_setup(path: Path) -> None:
    first = code_cells(path)[0].source
    assert "notebook.setup()" in first
    assert len(first.split("\n")) - first.count("\n\n") <= 2


@every_notebook
def test_cells_are_short(path: Path) -> None:
    for cell in code_cells(path):
        assert len(cell.source.splitlines()) <= 20, cell.source


def words(source: str) -> int:
    """Words of prose: without formulas, program text and the markup of boxes."""
    source = re.sub(r"\$\$.*?\$\$|\$[^$\n]*\$", " x ", source, flags=re.DOTALL)
    source = re.sub(r"^```(\w+)$.*?^```$", " ", source, flags=re.DOTALL | re.MULTILINE)
    source = re.sub(r"^(```|:::|:\w+:).*$", " ", source, flags=re.MULTILINE)
    return len(re.findall(r"\w[\w'’-]*", source))


@every_notebook
def test_prose_comes_in_small_pieces(path: Path) -> None:
    for cell in prose_cells(path):
        if not re.search(r"^#+ .*To read on", cell.source, flags=re.MULTILINE):
            assert words(cell.source) <= 150, f"{words(cell.source)} words:\n{cell.source}"


@every_notebook
def test_file_is_light(path: Path) -> None:
    assert path.stat().st_size < 2_000_000


@every_chapter
def test_chapter_follows_the_skeleton(path: Path) -> None:
    text = "\n".join(cell.source for cell in prose_cells(path))
    titles = [line.lower() for line in text.splitlines() if re.match(r"#+ |\*\*|`{3,}\{adm", line)]
    place = {
        part: next((i for i, title in enumerate(titles) if part in title), None)
        for part in SKELETON
    }
    missing = [part for part in SKELETON if place[part] is None]
    assert not missing, f"no heading or box says {missing}"
    places = [place[part] for part in IN_ORDER]
    assert places == sorted(places), f"the parts stand in another order: {titles}"


@every_chapter
def test_chapter_asks_for_predictions_and_sets_exercises(path: Path) -> None:
    text = "\n".join(cell.source for cell in prose_cells(path))
    assert text.count(":class: predict") >= 1
    assert 3 <= len(re.findall(r"^`{3,}\{exercise", text, flags=re.MULTILINE)) <= 6
    code = "\n".join(cell.source for cell in code_cells(path))
    assert "interact" in code, "each chapter has at least one plain ipywidgets control"
    assert "assert_close" in code, "each chapter proves what it built"
