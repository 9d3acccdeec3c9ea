"""Widgets in a real JupyterLab, with a kernel, on a model of the reader's own.

One server and one Chromium for all tests. What a widget shows is compared with what `trace` says in
the kernel, about the very model that the widget was given. No page may ask another host.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.browser import chromium

pytestmark = [pytest.mark.browser, pytest.mark.allow_hosts(["127.0.0.1"])]

ROOT = Path(__file__).parents[1]
TOKEN = "a-token-for-the-tests"
NOWHERE = "http://127.0.0.1:9"  # nobody listens there: a download fails at once, and aloud
LABORATORY = "[data-gptedu-widget=attention]"
EXPLORER = "[data-gptedu-widget=multihead]"
LIVE = "[data-gptedu-live]"

CELLS = [
    """\
import json
import torch
from gptedu.config import GPTConfig
from gptedu.seeds import untrained
from gptedu.tokenizer import CharTokenizer
from gptedu.tracing import trace
from gptedu.widgets import HeadExplorer, MaskLaboratory

tokenizer = CharTokenizer("O Romeo, wherefore art thou?")
words = dict(context_length=32, n_layer=2, n_head=2, d_model=16, position="rope", init="torch")
config = GPTConfig(vocab_size=tokenizer.vocab_size, **words)

def sharp(seed):
    model = untrained(config, seed=seed)
    for block in model.blocks:  # random heads are even: larger queries make them choose
        block.attention.query.weight.data *= 6
    return model

def weights(model, view, length=None):
    ids = torch.tensor([tokenizer.encode(view.text)[:length]])
    return trace(model, ids).attention[view.layer - 1, 0, view.head - 1].tolist()

model, other = sharp(3), sharp(4)""",
    'lab = MaskLaboratory(model=model, tokenizer=tokenizer, text="O Romeo, Romeo")\nlab',
    'explorer = HeadExplorer(model=model, tokenizer=tokenizer, text="O Romeo, Romeo")\nexplorer',
    "print(json.dumps([lab.temperature, lab.length, explorer.head]))",
]


# The server and its pages ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that JupyterLab shows: a small notebook, and a chapter without its outputs."""
    folder = tmp_path_factory.mktemp("root")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    small = new_notebook(cells=[new_code_cell(text) for text in CELLS], metadata=kernel)
    nbformat.write(small, folder / "small.ipynb")
    chapter = nbformat.read(ROOT / "notebooks" / "03_attention.ipynb", as_version=4)
    for cell in chapter.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(chapter, folder / "chapter.ipynb")
    return folder


@pytest.fixture(scope="module")
def lab(
    browser: Any, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], str]]:
    """A running JupyterLab that knows nothing of the user; gives the address of a notebook."""
    home = tmp_path_factory.mktemp("home")
    settings = home / "config" / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(
        '{"fetchNews": "false", "checkForUpdates": false, "doNotDisturbMode": true}'
    )
    own = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "IPYTHONDIR": "ipython",
    }
    env = os.environ | {name: str(home / folder) for name, folder in own.items()}
    env |= {"http_proxy": NOWHERE, "https_proxy": NOWHERE, "OMP_NUM_THREADS": "1"}
    env |= {"no_proxy": "127.0.0.1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"]
    command += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={root}"]
    command += [f"--IdentityProvider.token={TOKEN}", "--LabApp.extension_manager=readonly"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    log = home / "log"
    with log.open("w") as out:
        server = subprocess.Popen(command, env=env, cwd=root, stdout=out, stderr=out)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(f"{address}/api/status?token={TOKEN}") or server.poll(), 60)
        assert server.poll() is None, log.read_text()[-3000:]
        yield lambda notebook: f"{address}/lab/tree/{notebook}?token={TOKEN}&reset"
    finally:
        server.terminate()  # it ends its kernels
        server.wait(timeout=20)


def answers(url: str) -> bool:
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(url, timeout=5).status == 200
    return False


def wait_for(condition: Callable[[], Any], seconds: float) -> None:
    """Poll; what does not come in time is left to the assertion that follows."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)


@contextlib.contextmanager
def opened(browser: Any, address: str) -> Iterator[Any]:
    """A notebook in JupyterLab. In the end nothing may have gone wrong, and nothing gone out."""
    page = browser.new_page(viewport={"width": 1300, "height": 1100})
    faults: list[str] = []
    asked: list[str] = []
    page.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.on("websocket", lambda ws: asked.append(ws.url))
    page.goto(address)
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=60_000)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)  # its kernel is there
    yield page
    page.close()
    hosts = {urlparse(url).netloc for url in asked if not url.startswith(("data:", "blob:"))}
    assert hosts == {urlparse(address).netloc}
    assert any(url.startswith("ws://") for url in asked), "no kernel was spoken to"
    assert faults == []


@pytest.fixture(scope="module")
def small(browser: Any, lab: Callable[[str], str]) -> Iterator[Any]:
    """The small notebook, run from top to bottom, with both widgets living."""
    with opened(browser, lab("small.ipynb")) as page:
        run_all(page)
        for widget in (LABORATORY, EXPLORER):
            page.locator(widget + LIVE).wait_for(timeout=60_000)
        yield page


def menu(page: Any, first: str, *names: str) -> None:
    page.get_by_role("menuitem", name=first, exact=True).click()
    for name in names:
        page.locator(".lm-Menu-itemLabel").get_by_text(name, exact=True).click()


def run_all(page: Any) -> None:
    menu(page, "Run", "Run All Cells")
    last = page.locator(".jp-Notebook .jp-CodeCell").last.locator(".jp-InputPrompt")
    ran = re.compile(r"\[\d+\]")
    wait_for(lambda: ran.search(last.inner_text()), 240)
    assert ran.search(last.inner_text()), "the last cell did not run"


def ask(page: Any, code: str) -> Any:
    """Run code in the last cell, as a reader would; what it prints, read as JSON."""
    cell = page.locator(".jp-Notebook .jp-CodeCell").last
    prompt = cell.locator(".jp-InputPrompt")
    before = prompt.inner_text()
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(code)
    page.keyboard.press("Control+Enter")
    waiting = (before, "[*]:")
    wait_for(lambda: prompt.inner_text() not in waiting, 20)
    assert prompt.inner_text() not in waiting
    output = cell.locator(".jp-OutputArea-output")
    if not output.count():
        return None
    return json.loads(output.inner_text())


def python_sees(page: Any, expression: str) -> Any:
    return ask(page, f"print(json.dumps({expression}))")


def picture(page: Any, widget: str) -> str:
    pictures = page.locator(f"{widget} svg.gptedu-picture")
    return "".join(pictures.nth(i).inner_html() for i in range(pictures.count()))


def changed(page: Any, widget: str, act: Callable[[], Any]) -> None:
    """After `act` the picture is another one, and the widget still lives."""
    before = picture(page, widget)
    act()
    wait_for(lambda: picture(page, widget) != before, 5)
    assert picture(page, widget) != before
    assert page.locator(widget + LIVE).count() == 1


def choose_cell(page: Any, map: Any, row: int, column: int) -> None:
    """Go to a cell of a heat map with the arrow keys."""
    map.focus()
    for key, times in (("ArrowUp", 20), ("Home", 1), ("ArrowDown", row), ("ArrowRight", column)):
        for _ in range(times):
            page.keyboard.press(key)


def number(text: str) -> float:
    return float(text.replace("−", "-"))


# A model of the reader's own ---------------------------------------------------------------------


def test_a_slider_answers_to_mouse_and_keys_and_python_sees_it(small: Any) -> None:
    slider = small.get_by_role("slider", name="Temperature")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    place = box["x"] + 0.8 * box["width"], box["y"] + box["height"] / 2
    changed(small, LABORATORY, lambda: small.mouse.click(*place))
    by_mouse = python_sees(small, "lab.temperature")
    assert 2 < by_mouse < 2.9
    slider.focus()
    for _ in range(5):
        changed(small, LABORATORY, lambda: small.keyboard.press("ArrowLeft"))
    assert python_sees(small, "lab.temperature") == pytest.approx(by_mouse - 0.5)
    slider.focus()
    changed(small, LABORATORY, lambda: small.keyboard.press("End"))
    assert python_sees(small, "lab.temperature") == 3
    assert python_sees(small, "lab.numbers().scaled.shape") == [8, 8]


def test_the_head_explorer_answers_to_mouse_and_keys(small: Any) -> None:
    ask(small, "explorer.layer, explorer.head = 1, 1")
    grid = small.locator(f"{EXPLORER} svg[role=application]").nth(1)
    assert grid.get_attribute("aria-label").startswith("2 layers of 2 heads")
    grid.focus()
    changed(small, EXPLORER, lambda: small.keyboard.press("ArrowRight"))
    assert python_sees(small, "[explorer.layer, explorer.head]") == [1, 2]
    grid.scroll_into_view_if_needed()
    frames = grid.locator("rect.gptedu-frame")
    changed(small, EXPLORER, lambda: frames.nth(2).click(force=True, position={"x": 9, "y": 9}))
    assert python_sees(small, "[explorer.layer, explorer.head]") == [2, 1]


def test_what_python_sets_is_shown(small: Any) -> None:
    flag = small.locator(f"{LABORATORY} .gptedu-status")
    ask(small, 'lab.mask = "causal"')
    assert flag.inner_text().startswith("Nothing leaks")
    changed(small, LABORATORY, lambda: ask(small, 'lab.mask, lab.length = "off", 5'))
    assert flag.inner_text().startswith("⚑ The future leaks: no mask hides it.")
    assert small.get_by_role("slider", name="Length T").input_value() == "5"
    select = small.locator(LABORATORY).get_by_label("Mask", exact=True)
    assert select.locator("option:checked").inner_text() == "off"
    ask(small, 'lab.mask, lab.length = "causal", 8')
    ask(small, "explorer.layer, explorer.head = 1, 1")
    changed(small, EXPLORER, lambda: ask(small, "explorer.layer, explorer.head = 2, 2"))
    assert small.locator(f"{EXPLORER} .gptedu-status").inner_text().startswith("Layer 2, head 2 ")


@pytest.mark.parametrize(("row", "column"), [(0, 0), (6, 3), (7, 7), (5, 1)])
def test_the_weight_of_a_chosen_cell_is_that_of_the_model(
    small: Any, row: int, column: int
) -> None:
    ask(small, "lab.temperature, lab.layer, lab.head = 1.0, 2, 1")
    choose_cell(small, small.locator(f"{LABORATORY} svg[role=application]").nth(3), row, column)
    shown = small.locator(f"{LABORATORY} .gptedu-derivation dd").last.locator("b").last
    wanted = python_sees(small, "[lab.cell, weights(model, lab, lab.length)]")
    assert wanted[0] == [row, column]
    assert number(shown.inner_text()) == pytest.approx(wanted[1][row][column], abs=0.00501)


def test_numbers_of_random_vectors_are_those_of_python(small: Any) -> None:
    ask(small, 'lab.vectors, lab.power, lab.temperature = "random", 0.3, 0.7')
    choose_cell(small, small.locator(f"{LABORATORY} svg[role=application]").nth(1), 5, 2)
    lines = small.locator(f"{LABORATORY} .gptedu-derivation dd")
    shown = [number(lines.nth(i).locator("b").last.inner_text()) for i in (0, 1, 3)]
    names = ("scores", "scaled", "weights")
    wanted = python_sees(small, f"[float(getattr(lab.numbers(), n)[5, 2]) for n in {names}]")
    ask(small, 'lab.vectors, lab.power, lab.temperature = "model", 0.5, 1.0')
    assert shown == pytest.approx(wanted, abs=0.00501)


def test_another_model_is_shown_with_its_own_weights(small: Any) -> None:
    ask(small, "explorer.layer, explorer.head = 2, 1")
    models = []
    for name in ("model", "other"):
        act = lambda name=name: ask(small, f"explorer.show({name}, tokenizer)")  # noqa: E731
        changed(small, EXPLORER, act) if name == "other" else act()
        small.locator(EXPLORER + LIVE).wait_for()
        map = small.locator(f"{EXPLORER} svg[role=application]").nth(2)
        choose_cell(small, map, 9, 4)
        words = small.locator(f"{EXPLORER} .gptedu-status").inner_text()
        found = re.fullmatch(r"“(.)” \(10\) reads “(.)” \(5\) with a weight of ([\d.]+)\.", words)
        assert found, words
        wanted = python_sees(small, f"weights({name}, explorer)")[9][4]
        assert float(found[3]) == pytest.approx(wanted, abs=0.000501)
        assert (found[1], found[2]) == ("R", "m")
        models.append(wanted)
    assert abs(models[0] - models[1]) > 0.01, "models alike: the comparison says nothing"


def test_a_dark_jupyterlab_has_dark_widgets(small: Any) -> None:
    both = (LABORATORY, EXPLORER)
    size = "all => all.map(e => [e.viewBox.baseVal.width, e.getBoundingClientRect().width])"

    def look(widget: str) -> tuple[str, str]:
        ink = "e => getComputedStyle(e).color"
        return small.locator(f"{widget} .gptedu-widget").evaluate(ink), picture(small, widget)

    light = {widget: look(widget) for widget in both}
    menu(small, "Settings", "Theme", "JupyterLab Dark")
    for widget in both:
        wait_for(lambda w=widget: "#1d1c23" in picture(small, w), 5)  # the dark end of the weights
        ink, pictures = look(widget)
        assert "#1d1c23" in pictures
        assert "#1d1c23" not in light[widget][1]
        assert ink != light[widget][0]
        small.wait_for_timeout(200)  # two drawings: while everything is hidden, and after
        for drawn, shown in small.locator(f"{widget} svg.gptedu-picture").evaluate_all(size):
            assert drawn == pytest.approx(shown, abs=1), "squeezed"
    menu(small, "Settings", "Theme", "JupyterLab Light")
    for widget in both:
        wait_for(lambda w=widget: look(w) == light[w], 5)
        assert look(widget) == light[widget]


# A chapter of the book ---------------------------------------------------------------------------


def test_a_chapter_runs_and_its_laboratory_lives(
    browser: Any, lab: Callable[[str], str], root: Path
) -> None:
    with opened(browser, lab("chapter.ipynb")) as page:
        run_all(page)
        page.keyboard.press("Control+s")
        page.locator(".jp-mod-dirty").first.wait_for(state="detached")
        assert unfinished(root / "chapter.ipynb") == []
        assert errors(root / "chapter.ipynb") == []
        laboratory = page.locator(LABORATORY)
        laboratory.scroll_into_view_if_needed()
        page.locator(LABORATORY + LIVE).wait_for(timeout=30_000)
        slider = laboratory.get_by_role("slider", name="Window")
        slider.focus()
        changed(page, LABORATORY, lambda: page.keyboard.press("Home"))
        assert "Each query sees 1 positions" in laboratory.locator(".gptedu-status").inner_text()


def code_cells(file: Path) -> list[Any]:
    cells = nbformat.read(file, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


def unfinished(file: Path) -> list[str]:
    return [cell.source for cell in code_cells(file) if not cell.execution_count]


def errors(file: Path) -> list[str]:
    outputs = [output for cell in code_cells(file) for output in cell.outputs]
    return [f"{o.ename}: {o.evalue}" for o in outputs if o.output_type == "error"]
