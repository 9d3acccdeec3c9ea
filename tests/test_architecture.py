"""The plan of the house: who may import whom, how big things may grow, one name for one idea.

Reads the source with `ast` and never imports what it judges, except in a fresh interpreter.
"""

import ast
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gptedu"

# A module may import those in rows above its own: never one below, never one beside it.
LADDER = [
    ("ground", ["config", "files"]),
    ("bricks", ["tokenizer"]),
    ("bricks", ["corpus", "batches"]),
    ("bricks", ["embedding"]),
    ("bricks", ["rope"]),
    ("bricks", ["dropout"]),
    ("bricks", ["attention"]),
    ("bricks", ["norm", "mlp"]),
    ("bricks", ["cache", "loss"]),
    ("bricks", ["optim"]),
    ("bricks", ["sampling"]),
    ("bricks", ["parameters"]),
    ("bricks", ["cost"]),
    ("walls", ["multihead"]),
    ("room", ["block"]),
    ("house", ["model"]),
    ("life", ["hub", "seeds"]),
    ("life", ["checkpoint"]),
    ("life", ["tracing", "generation"]),
    ("life", ["parallel"]),
    ("life", ["training"]),
    ("life", ["recording"]),
    ("life", ["inside"]),
    ("windows", ["plots", "widgets", "check"]),
    ("desk", ["notebook", "__main__"]),
]
HEIGHT = {name: row for row, (_, names) in enumerate(LADDER) for name in names}
FLOOR = {name: floor for floor, names in LADDER for name in names}

# Lines of code, without blank lines, comments and docstrings. Past that, say it more simply.
BUDGET = {"model": 2_700, "plots and widgets": 1_040, "check": 3_200, "JavaScript": 4_050}

# Imports that stand inside a function, because most readers never need what they load.
OPTIONAL = {("hub", "huggingface_hub"), ("parallel", "torch")}


def top(path: Path) -> str:
    """The name on the ladder: `attention` of attention.py, `check` of all in check/."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
MODULES = sorted({top(path) for path in FILES})
IDS = [str(path.relative_to(PACKAGE)) for path in FILES]
every_file = pytest.mark.parametrize("path", FILES, ids=IDS)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(node: ast.AST) -> list[str]:
    """The dotted names that an import statement asks for."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: write the import from `gptedu`, not with dots"
        if node.module == "gptedu":
            return [f"gptedu.{alias.name}" for alias in node.names]
        return [node.module or ""]
    return []


def code_lines(path: Path) -> int:
    """Lines that hold code: no blank lines, no comments, no docstrings."""
    source = path.read_text(encoding="utf-8")
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), start=1)
    return sum(
        1
        for n, line in lines
        if line.strip() and not line.lstrip().startswith("#") and n not in docstrings
    )


def script_lines(path: Path) -> int:
    """The same for JavaScript, whose comments start their line here (`//`, or `/*` with stars)."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return sum(1 for line in lines if line and not line.startswith(("//", "/*", "* ", "*/")))


def test_every_module_stands_on_the_ladder() -> None:
    assert MODULES, "no module found"
    assert set(MODULES) <= set(HEIGHT), "give each new module a row in LADDER"


@every_file
def test_imports_come_from_rows_above(path: Path) -> None:
    own = top(path)
    for node in ast.walk(parse(path)):
        for name in imported(node):
            if not name.startswith("gptedu"):
                continue
            assert name != "gptedu", "import the module that you need, not the whole package"
            other = name.split(".")[1]
            assert other in HEIGHT, f"{name} is not on the ladder"
            inside_one_package = other == own and path.parent != PACKAGE
            assert inside_one_package or HEIGHT[other] < HEIGHT[own], f"{own} imports {other}"


def test_files_of_one_package_do_not_import_in_a_circle() -> None:
    edges = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): {
            name
            for node in ast.walk(parse(path))
            for name in imported(node)
            if name.startswith("gptedu.")
        }
        for path in FILES
        if path.parent != PACKAGE and path.name != "__init__.py"
    }
    while edges:
        leaves = [name for name, targets in edges.items() if not targets & set(edges)]
        assert leaves, f"these import each other: {sorted(edges)}"
        for name in leaves:
            del edges[name]


@every_file
def test_imports_stand_at_the_top(path: Path) -> None:
    tree = parse(path)
    for node in ast.walk(tree):
        names = {name.split(".")[0] for name in imported(node)}
        if names and node not in tree.body:
            assert {(top(path), name) for name in names} <= OPTIONAL, f"line {node.lineno}"
    kinds = [bool(imported(node)) for node in tree.body if not isinstance(node, ast.Expr)]
    assert kinds == sorted(kinds, reverse=True), "an import stands below other code"


def public(tree: ast.Module) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Public classes and functions of a module, and the public methods of those classes."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                        yield method


@every_file
def test_public_names_say_what_they_are(path: Path) -> None:
    tree = parse(path)
    assert ast.get_docstring(tree), "the module has no docstring"
    # forward is nn.Module's own word: what it does is what the class says
    silent = [n.name for n in public(tree) if n.name != "forward" and not ast.get_docstring(n)]
    assert not silent, f"no docstring: {', '.join(silent)}"


@every_file
def test_a_function_can_be_read_in_one_breath(path: Path) -> None:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef):
            docstring = node.body[0].end_lineno if ast.get_docstring(node) else node.lineno
            length = (node.end_lineno or 0) - (docstring or 0)
            limit = 15 if node.name == "forward" else 45
            assert length <= limit, f"{node.name} has {length} lines, {limit} are allowed"


def test_the_package_stays_small() -> None:
    sizes = dict.fromkeys(BUDGET, 0)
    for path in FILES:
        name = top(path)
        if FLOOR[name] in ("ground", "bricks", "walls", "room", "house", "life"):
            sizes["model"] += code_lines(path)
        elif name in ("plots", "widgets"):
            sizes["plots and widgets"] += code_lines(path)
        elif name == "check":
            sizes["check"] += code_lines(path)
    for path in PACKAGE.rglob("*.js"):
        sizes["JavaScript"] += script_lines(path)
    too_big = {kind: size for kind, size in sizes.items() if size > BUDGET[kind]}
    assert not too_big, f"{too_big} lines of code, allowed {BUDGET}"


def test_the_size_of_a_file_is_counted_right(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        '"""Doc\nstring."""\n\n# why\nx = 1  # note\n\n\ndef f():\n    """Doc."""\n    return x\n'
    )
    assert code_lines(file) == 3
    script = tmp_path / "x.js"
    script.write_text("/** Twice.\n * So */\n/* it is */\nconst f = (a) =>\n\n  // why\n  a + a;\n")
    assert script_lines(script) == 2


# One idea, one name --------------------------------------------------------------------------

CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
# they put together what other chapters built
WITHOUT_MODULE = {"modern", "scale", "find_the_bug"}


def test_each_module_has_its_test() -> None:
    for name in MODULES:
        inside = [path.stem for path in (PACKAGE / name).glob("*.py")]  # of a package: one of these
        tests = [ROOT / "tests" / f"test_{part.strip('_')}.py" for part in (name, *inside)]
        assert any(test.exists() for test in tests), f"no test file for {name}"


def test_each_chapter_has_its_module_and_its_solutions() -> None:
    assert CHAPTERS, "no chapter found"
    for chapter in CHAPTERS:
        concept = chapter.stem[3:]
        assert concept in MODULES or concept in WITHOUT_MODULE, f"no gptedu/{concept}"
        assert (ROOT / "notebooks" / "solutions" / chapter.name).exists(), (
            f"no solutions to {concept}"
        )


@pytest.mark.parametrize("page", ["README.md", "book/map.md"])
def test_the_table_of_chapters_is_true(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    rows = re.findall(r"^\| *(\d+) *\|(.+)\|$", text, flags=re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 14))
    for number, row in rows:
        written = [path.name for path in CHAPTERS if path.name.startswith(f"{int(number):02}_")]
        linked = re.findall(r"notebooks/([\w.]+)\)", row)
        assert linked == written, f"chapter {number}: links to {linked}, written is {written}"
        folder = ROOT
        for name in re.findall(
            r"`([\w/]+\.(?:py|js))`", row
        ):  # `rope.py` lies beside the one before
            folder = ROOT / Path(name).parent if "/" in name else folder
            assert (folder / Path(name).name).exists(), f"chapter {number}: {name} is not there"


def test_the_map_shows_the_ladder() -> None:
    text = (ROOT / "book" / "map.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| (\w+) \| (.+) \|$", text.partition("| floor |")[2], re.MULTILINE))
    for floor in dict.fromkeys(floor for floor, _ in LADDER):
        here = {name for name in MODULES if FLOOR[name] == floor}
        assert set(re.findall(r"`(\w+)`", shown[floor])) == here, floor


# What must not be in any file ------------------------------------------------------------------

TEXT = {
    ".py",
    ".md",
    ".ipynb",
    ".toml",
    ".txt",
    ".yml",
    ".cff",
    ".bib",
    ".js",
    ".css",
    ".html",
    ".cfg",
}
SKIP = {".venv", ".git", "_build", "build", "runs", "__pycache__", ".ipynb_checkpoints"}


def texts() -> list[Path]:
    def walk(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if path.name in SKIP or path.name.endswith(("_cache", ".egg-info")):
                continue
            if path.is_dir():
                yield from walk(path)
            elif path.suffix in TEXT or path.name in ("Makefile", ".gitignore"):
                yield path

    return list(walk(ROOT))


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    places = re.compile(r"(?<![\w.])/(work|root|home/\w+|Users/\w+|tmp/ipykernel\w*)/|shared/")
    own = Path(__file__)
    assert len(texts()) > 30
    for path in texts():
        found = places.search(path.read_text(encoding="utf-8")) if path != own else None
        assert not found, f"{path.relative_to(ROOT)} mentions {found.group()}"


def words_of(path: Path) -> str:
    """What a file says; of a notebook, its sources and its printed outputs."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    parts = []
    for cell in json.loads(text)["cells"]:
        parts.append("".join(cell["source"]))
        for output in cell.get("outputs", []):
            parts.append("".join(output.get("text", output.get("data", {}).get("text/plain", ""))))
    return "\n".join(parts)


def test_tiny_shakespeare_is_quoted_not_copied(tiny_shakespeare: str) -> None:
    def passages(text: str, length: int = 6) -> set[tuple[str, ...]]:
        lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 12]
        return set(zip(*(lines[i:] for i in range(length)), strict=False))

    known = passages(tiny_shakespeare)
    assert len(known) > 20_000
    for path in texts():
        assert not passages(words_of(path)) & known, f"{path.relative_to(ROOT)} copies a passage"


# What runs --------------------------------------------------------------------------------------


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, time, torch, numpy; start = time.perf_counter(); import gptedu; "
        "print(time.perf_counter() - start); heavy = {'matplotlib', 'ipywidgets', 'transformers'}; "
        "print(*(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds, *heavy = done.stdout.split()
    assert not heavy, f"`import gptedu` loads {heavy}"
    assert float(seconds) < 3.0, f"`import gptedu` takes {seconds} s beyond torch"


def test_shapes_are_checked_in_these_tests() -> None:
    from gptedu.attention import causal_mask
    from gptedu.norm import rms_norm

    assert causal_mask(2).tolist() == [[True, False], [True, True]]
    with pytest.raises(TypeCheckError):
        rms_norm(torch.zeros(2, 3), torch.ones(4), 1e-5)


def test_no_test_reaches_the_network() -> None:
    with pytest.warns(UserWarning, match="socket"), pytest.raises(RuntimeError, match="socket"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)
