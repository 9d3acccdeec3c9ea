"""A plain page with widgets on it, laid out as the built book lays out its static files."""

import shutil
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from gptedu import checkpoint
from gptedu.config import GPTConfig
from gptedu.model import GPT
from gptedu.seeds import untrained
from gptedu.tokenizer import CharTokenizer, Tokenizer
from gptedu.widgets import Widget, host, run_script, weights_script
from tests import browser

HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    '<img src=x onerror="window.hacked = 1">',
    "<!-- <script> --> ]]> &lt; &amp;",
    "שלום \u202eabc\u202c עולם",
    "👩‍🔬🙂 \u200d \ufeff",
    "\ud800 half",
    "\x00\x01\x1b\x7f\u2028\uffff",
    "x" * 10_000,
    "",
]
SYMBOLS = "\n !,.:?" + string.ascii_letters
CONFIG = GPTConfig(
    vocab_size=len(SYMBOLS), context_length=32, n_layer=2, n_head=4, n_kv_head=2, d_model=32,
    position="rope", qk_norm=True,
)  # fmt: skip


def little_model(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: GPT | None = None,
    tokenizer: Tokenizer | None = None,
) -> Path:
    """A small model, random unless given, in the place of the one that the book ships."""
    folder.mkdir()
    file = folder / "shakespeare-mini.safetensors"
    model, tokenizer = model or untrained(CONFIG, seed=5), tokenizer or CharTokenizer(SYMBOLS)
    file.write_bytes(host.pack(model, tokenizer))
    monkeypatch.setattr(host, "ASSETS", folder)
    monkeypatch.setattr(checkpoint, "ASSETS", folder)
    return file


@contextmanager
def bare_page(chromium: Any, file: str) -> Iterator[Any]:
    """A page that has the library and one widget's arithmetic, and shows nothing."""
    with browser.visit(chromium) as page:
        page.goto("about:blank")
        for script in (*(f"lib/{name}" for name in host.LIBRARY), file):
            page.add_script_tag(path=host.STATIC / script)
        yield page


@contextmanager
def page_with(
    chromium: Any,
    folder: Path,
    *widgets: Widget,
    file: Path | None = None,
    runs: Sequence[str] = (),
    **options: Any,
) -> Iterator[Any]:
    """A page that shows the widgets, all of them live; `file` and `runs`: what it may load."""
    site = folder / "site"
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(host.STATIC, site / "_static")
    if file is not None:
        (site / "_static" / "weights").mkdir()
        script = site / "_static" / "weights" / f"{file.stem}.js"
        script.write_text(weights_script(file), encoding="utf-8")
    for name in runs:
        script = site / "_static" / "runs" / f"{name}.js"
        script.parent.mkdir(exist_ok=True)
        script.write_text(run_script(name), encoding="utf-8")
    pieces = "".join(widget.book_html() for widget in widgets)
    (site / "index.html").write_text(
        '<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<title>page</title><link rel="stylesheet" href="_static/widgets.css">'
        '<script defer src="_static/lib/core.js"></script></head><body><main><h1>A page</h1>'
        f'{pieces}<p id="below">below</p></main></body></html>',
        encoding="utf-8",
    )
    with browser.visit(chromium, site, **options) as page:
        page.goto(f"{browser.HTTP}/index.html")
        for i in range(len(widgets)):
            page.locator("[data-gptedu-widget]").nth(i).scroll_into_view_if_needed()
            page.locator(f"[data-gptedu-live] >> nth={i}").wait_for()
        page.evaluate("window.scrollTo(0, 0)")
        yield page


def restored(page: Any, kind: type[Widget]) -> Any:
    """The widget that the line of Python makes, as a reader would paste it."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy as Python").click()
    return eval(page.locator(".gptedu-note code").inner_text(), {kind.__name__: kind})


def findings(page: Any) -> list[str]:
    """What is wrong for eyes and for axe in light and dark, in this width, and on paper."""
    wrong = []
    for theme, colours in (("light", "white; color: black"), ("dark", "#16151a; color: white")):
        page.evaluate("(theme) => document.documentElement.dataset.theme = theme", theme)
        page.evaluate("(colours) => document.body.style = `background: ${colours}`", colours)
        for one in Axe().run(page).response["violations"]:
            wrong.append(f"{theme}: {one['id']}: {one['nodes'][0]['html'][:200]}")
    if not page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
        wrong.append("it scrolls sideways")
    small = (
        "[...document.querySelectorAll('.gptedu-widget *')].filter((el) => el.textContent.trim()"
        " && parseFloat(getComputedStyle(el).fontSize) < 11).map((el) => el.outerHTML)"
    )
    wrong += [f"too small: {html[:100]}" for html in page.evaluate(small)]
    page.emulate_media(media="print")
    if not page.locator("svg").first.is_visible():
        wrong.append("no picture on paper")
    if page.get_by_role("button", name="Save PNG").first.is_visible():
        wrong.append("buttons on paper")
    return wrong


def milliseconds(page: Any, trait: str, value: float) -> float:
    """From a slider's event to the frame in which its picture has changed."""
    return page.evaluate(
        """async ([trait, value]) => {
          const input = document.querySelector(`input[data-trait=${trait}]`);
          const all = document.querySelectorAll("svg");
          const pictures = () => [...all].map((e) => e.innerHTML).join();
          const before = pictures();
          const start = performance.now();
          input.value = value;
          input.dispatchEvent(new Event("input"));
          while (pictures() === before) {
            if (performance.now() - start > 3000) throw new Error("the picture stays as it was");
            await new Promise((next) => setTimeout(next, 0));
          }
          return performance.now() - start;
        }""",
        [trait, value],
    )
