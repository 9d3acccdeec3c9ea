"""The host of the widgets: what Python stores, and what a page makes of it.

A demo widget, written here for the tests only, runs in Chromium on plain pages, over http and from
disk; what it shows is compared with PyTorch, and what it holds with what Python gave it.
"""

import base64
import html
import io
import json
import random
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import pytest
import torch
import traitlets
from axe_playwright_python.sync_playwright import Axe

from gptedu import seeds
from gptedu.config import GPTConfig
from gptedu.seeds import untrained
from gptedu.tokenizer import CharTokenizer
from gptedu.tracing import trace
from gptedu.widgets import ModelWidget, Widget, host, weights_script
from tests import browser, widget_page

# Without the empty text: what shows nothing cannot be waited for.
HOSTILE = [*filter(None, widget_page.HOSTILE), "'); window.hacked = 1; ('"]
SYMBOLS = "\n abcdehlort"
CONFIG = GPTConfig(
    vocab_size=len(SYMBOLS), context_length=16, n_layer=2, n_head=2, d_model=16, position="rope"
)


class Demo(ModelWidget):
    """A widget that is not shipped."""

    _name = "demo"
    _folder: ClassVar[Path] = Path(__file__).parent / "js"
    SHIPPED = "little"
    text = traitlets.Unicode("the cat").tag(sync=True, book=True)
    temperature = traitlets.Float(1.0).tag(sync=True, book=True)
    layer = traitlets.Int(1).tag(sync=True, book=True)
    kind = traitlets.Unicode("probability").tag(sync=True, book=True)
    causal = traitlets.Bool(True).tag(sync=True, book=True)
    secret = traitlets.Unicode("stays here").tag(sync=True)

    def fallback(self) -> str:
        return host.table("Weights", ["", self.text], [[self.text, 1.0]])


@pytest.fixture(autouse=True)
def assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one shipped model, `little`, in the place of the book's."""
    folder = tmp_path / "assets"
    folder.mkdir()
    model = untrained(CONFIG, seed=5)
    (folder / "little.safetensors").write_bytes(host.pack(model, CharTokenizer(SYMBOLS)))
    monkeypatch.setattr(host, "ASSETS", folder)
    return folder


# Python -------------------------------------------------------------------------------------------


def test_a_misspelt_trait_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="Demo has no temprature; its state is causal, kind, lay"):
        Demo(temprature=0.5)


class _State(HTMLParser):
    """Reads a piece of HTML as a browser does: elements, text, and what the script holds."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.script, self.inside = "", False
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.inside = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        self.script += data if self.inside else ""


@pytest.mark.parametrize("text", HOSTILE)
def test_stored_output_holds_any_text_and_nothing_of_it_is_html(text: str) -> None:
    source = Demo(text=text).book_html()
    assert source.isascii() or not re.search("[\ud800-\udfff]", source)
    page = _State(source)
    calm = _State(Demo(text="calm").book_html())
    assert page.tags == calm.tags
    assert json.loads(page.script)["text"] == text


def test_stored_output_has_what_is_tagged_and_never_weights() -> None:
    demo = Demo(model=untrained(CONFIG), tokenizer=CharTokenizer(SYMBOLS), layer=2)
    assert demo.model_name == ""
    data, _ = demo._repr_mimebundle_()
    state = json.loads(_State(data["text/html"]).script)
    assert state == {
        "text": "the cat",
        "temperature": 1.0,
        "layer": 2,
        "kind": "probability",
        "causal": True,
        "model_name": "little",
        "python": "Demo",
    }
    assert data["text/plain"] == "Demo()"
    assert data["text/html"] == Demo(layer=2).book_html()  # the same in every run
    assert 'data-gptedu-widget="demo"' in data["text/html"]


def test_numbers_that_json_has_no_word_for_are_refused() -> None:
    with pytest.raises(ValueError, match="plain JSON"):
        Demo(temperature=float("nan")).book_html()


def test_a_throw_away_class_of_add_traits_keeps_its_name() -> None:
    demo = Demo()
    demo.add_traits(extra=traitlets.Int(3).tag(sync=True))
    assert demo._repr_mimebundle_()[0]["text/plain"] == "Demo()"


def test_own_model_travels_whole(tmp_path: Path) -> None:
    model, tokenizer = untrained(CONFIG, seed=9), CharTokenizer(SYMBOLS)
    demo = Demo(model=model.bfloat16(), tokenizer=tokenizer)
    file = tmp_path / "sent.safetensors"
    file.write_bytes(demo.weights)
    from gptedu import checkpoint

    loaded, same = checkpoint.load(file)
    assert same.to_dict() == tokenizer.to_dict()
    for name, weight in loaded.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name].float())
    demo.show(untrained(CONFIG, seed=1), tokenizer)
    assert demo.weights != file.read_bytes()
    assert Demo().weights == (host.ASSETS / "little.safetensors").read_bytes()


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(ValueError, match=r"give tokenizer=\.\.\. too"):
        Demo(model=untrained(CONFIG))
    with pytest.raises(ValueError, match="knows 2 tokens, but the model has vocab_size=12"):
        Demo(model=untrained(CONFIG), tokenizer=CharTokenizer("ab"))
    with pytest.raises(ValueError, match="no model called 'huge' comes with the book"):
        Demo(model_name="huge")


def test_random_numbers_are_those_of_mulberry32() -> None:
    """Against the generator as its author wrote it, one number at a time."""

    def reference(seed: int) -> Iterator[float]:
        a = seed
        while True:
            a = (a + 0x6D2B79F5) & 0xFFFFFFFF
            t = ((a ^ (a >> 15)) * (a | 1)) & 0xFFFFFFFF
            t ^= (t + (t ^ (t >> 7)) * (t | 61)) & 0xFFFFFFFF
            yield ((t ^ (t >> 14)) & 0xFFFFFFFF) / 2**32

    for seed in (0, 1337, 2**32 - 1):
        stream, ours = reference(seed), seeds.Random(seed)
        found = [*ours.even(3), *ours.even(500)]
        assert found == [next(stream) for _ in range(503)]


# The page -----------------------------------------------------------------------------------------

FILLER = '<div style="height:3000px">far</div>'


@pytest.fixture
def site(tmp_path: Path, assets: Path) -> Path:
    """A folder laid out as the built book lays out its static files."""
    static = tmp_path / "site" / "_static"
    shutil.copytree(host.STATIC, static)
    shutil.copy(Demo._folder / "demo.js", static)
    (static / "weights").mkdir()
    script = weights_script(assets / "little.safetensors")
    (static / "weights" / "little.js").write_text(script, encoding="utf-8")
    return static.parent


def write_page(site: Path, *pieces: str, head: str = "") -> None:
    (site / "index.html").write_text(
        '<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<title>page</title><link rel="stylesheet" href="_static/widgets.css">'
        f'<script defer src="_static/lib/core.js"></script>{head}</head>'
        f"<body><main><h1>A page</h1>{''.join(pieces)}</main></body></html>",
        encoding="utf-8",
    )


def addresses(site: Path) -> dict[str, str]:
    return {"http": f"{browser.HTTP}/index.html", "file": (site / "index.html").as_uri()}


def expected_weights(text: str, layer: int = 0) -> torch.Tensor:
    ids = torch.tensor([CharTokenizer(SYMBOLS).encode(text)])
    return trace(untrained(CONFIG, seed=5), ids).attention[layer, 0, 0]


LIVE = "[data-gptedu-widget=demo][data-gptedu-live]"


@pytest.mark.browser
@pytest.mark.parametrize("way", ["http", "file"])
def test_a_page_is_alive_without_a_kernel(chromium: Any, site: Path, way: str) -> None:
    write_page(site, Demo().book_html())
    with browser.visit(chromium, site) as page:
        page.goto(addresses(site)[way])
        page.wait_for_selector(LIVE)
        assert page.get_by_role("status").first.inner_text() == "7 tokens, 0 dropped, layer 1"
        assert not page.locator(".gptedu-fallback").is_visible()
        assert not page.locator("[data-gptedu-error]").count()

        # the keyboard reaches every cell, and the cell has torch's number
        page.locator("svg[role=application]").focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)  # the first only enters
        wanted = float(expected_weights("the cat")[2, 1])
        assert page.get_by_role("status").first.inner_text() == f"the␣cat: 2,1 {wanted:.3f}"
        page.keyboard.press("End")
        assert ": 2,6 0.000" in page.get_by_role("status").first.inner_text()
        page.keyboard.press("Escape")
        assert "no cell" in page.get_by_role("status").first.inner_text()
        assert page.faults == []


@pytest.mark.browser
def test_controls_write_traits_and_follow_them(chromium: Any, site: Path) -> None:
    write_page(site, Demo().book_html())
    with browser.visit(chromium, site) as page:
        page.goto(addresses(site)["http"])
        page.wait_for_selector(LIVE)
        status = page.get_by_role("status").first
        before = page.locator("svg").first.inner_html()

        slider = page.get_by_role("slider", name="Temperature", exact=True)
        slider.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("document.querySelector('output').textContent === '1.1'")
        assert slider.get_attribute("aria-valuetext") == "1.1"
        page.wait_for_function("b => document.querySelector('svg').innerHTML !== b", arg=before)

        page.get_by_role("slider", name="Layer").focus()
        page.keyboard.press("End")
        page.wait_for_function("document.body.textContent.includes('dropped, layer 2')")
        page.get_by_label("Text").fill("hé <b>o")
        page.wait_for_function("document.body.textContent.includes('4 tokens, 3 dropped')")
        assert status.inner_text() == "4 tokens, 3 dropped, layer 2"
        page.get_by_label("Colours").select_option("with a sign")
        page.get_by_label("Causal").uncheck()

        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy as Python").click()
        line = page.locator(".gptedu-note code").inner_text()
        page.wait_for_function("document.querySelector('.gptedu-note').textContent.length > 9")
        line = page.locator(".gptedu-note code").inner_text()
        restored = eval(line, {"Demo": Demo})  # the line is Python, and means what is seen
        assert isinstance(restored, Demo)
        words = ("text", "temperature", "layer", "kind", "causal")
        assert [getattr(restored, word) for word in words] == ["hé <b>o", 1.1, 2, "signed", False]
        assert page.faults == []


@pytest.mark.browser
def test_many_changes_at_once_are_one_picture_and_the_newest_wins(
    chromium: Any, site: Path
) -> None:
    write_page(site, Demo().book_html())
    with browser.visit(chromium, site) as page:
        page.goto(addresses(site)["http"])
        page.wait_for_selector(LIVE)
        page.evaluate(
            """() => {
              const input = document.querySelector("input[type=text]");
              for (const text of ["a", "ab", "abc", "abcd", "abcde"]) {
                input.value = text;
                input.dispatchEvent(new Event("change"));
              }
            }"""
        )
        page.wait_for_function("document.body.textContent.includes('5 tokens')")
        page.wait_for_timeout(200)
        assert page.get_by_role("status").first.inner_text().startswith("5 tokens")
        assert page.locator("svg text.gptedu-token").count() == 10
        assert not page.locator("[data-gptedu-error]").count()


@pytest.mark.browser
def test_what_is_typed_while_the_model_loads_counts(chromium: Any, site: Path) -> None:
    write_page(site, Demo().book_html())
    with browser.visit(chromium, site) as page:
        page.add_init_script(
            """new MutationObserver((_, observer) => {
              const input = document.querySelector("input[type=text]");
              if (!input) return;
              observer.disconnect();
              input.value = "abc";
              input.dispatchEvent(new Event("change"));
            }).observe(document, { childList: true, subtree: true });"""
        )
        page.goto(addresses(site)["http"])
        page.wait_for_selector(LIVE)
        page.wait_for_function("document.body.textContent.includes('3 tokens')")
        assert page.faults == []


@pytest.mark.browser
def test_nothing_heavy_before_the_reader_is_near_and_weights_once(
    chromium: Any, site: Path
) -> None:
    write_page(site, FILLER, Demo().book_html(), Demo(layer=2).book_html(), FILLER)
    with browser.visit(chromium, site) as page:
        page.goto(addresses(site)["http"])
        page.wait_for_timeout(400)
        files = [url.rsplit("/", 1)[-1] for url in page.asked]
        assert files == ["index.html", "widgets.css", "core.js"]
        assert not page.locator("[data-gptedu-live]").count()
        page.locator("[data-gptedu-widget]").first.scroll_into_view_if_needed()
        page.wait_for_function("document.querySelectorAll('[data-gptedu-live]').length === 2")
        files = [url.rsplit("/", 1)[-1] for url in page.asked]
        assert sorted(files[3:]) == ["demo.js", "gpt.js", "little.js", "tokenizer.js"]
        assert page.evaluate("GptEdu.models.size") == 1
        assert page.faults == []


@pytest.mark.browser
def test_a_broken_widget_takes_no_other_down(chromium: Any, site: Path) -> None:
    broken = Demo().book_html().replace("\\u003c", "<").replace('{"', '{broken"', 1)
    unknown = Demo().book_html().replace('widget="demo"', 'widget="nobody"')
    missing = Demo().book_html().replace('"little"', '"absent"')
    empty = '<div data-gptedu-widget="demo"></div>'
    write_page(site, broken, Demo(text="break").book_html(), unknown, missing, empty,
               Demo().book_html())  # fmt: skip
    with browser.visit(chromium, site) as page:
        page.goto(addresses(site)["http"])
        page.wait_for_selector(LIVE)
        page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        page.wait_for_function("document.querySelectorAll('[data-gptedu-error]').length === 5")
        errors = page.evaluate(
            "[...document.querySelectorAll('[data-gptedu-widget]')]"
            ".map((host) => host.getAttribute('data-gptedu-error'))"
        )
        assert "JSON" in errors[0]
        assert errors[1] == "broken on purpose"
        assert "nobody.js could not be loaded" in errors[2]
        assert "weights/absent.js could not be loaded" in errors[3]
        assert "no state" in errors[4]
        assert errors[5] is None
        assert page.locator("[data-gptedu-live]").count() == 1
        assert page.get_by_role("alert").count() == 5
        # the table stands in where the widget could not start, and no half-built controls do
        assert page.locator(".gptedu-fallback").nth(1).is_visible()
        assert page.get_by_role("slider", name="Temperature").count() == 1
        assert all("absent.js" in fault or "nobody.js" in fault or "ERR_FAILED" in fault
                   for fault in page.faults)  # fmt: skip


@pytest.mark.browser
def test_an_error_goes_away_when_its_cause_does(chromium: Any, site: Path) -> None:
    write_page(site, Demo().book_html())
    with browser.visit(chromium, site) as page:
        page.goto(addresses(site)["http"])
        page.wait_for_selector(LIVE)
        page.get_by_label("Text").fill("ÄÖ")
        page.wait_for_selector("[data-gptedu-error='type something']:not([data-gptedu-live])")
        assert page.get_by_role("alert").inner_text() == "This widget stopped: type something"
        page.get_by_label("Text").fill("there")
        page.wait_for_selector(LIVE)
        assert not page.get_by_role("alert").count()
        page.get_by_role("button", name="Fail").click()
        page.wait_for_selector("[data-gptedu-error='as asked']")
        assert page.faults == []


@pytest.mark.browser
def test_hostile_text_does_no_harm(chromium: Any, site: Path) -> None:
    write_page(site, *(Demo(text=text).book_html() for text in HOSTILE))
    with browser.visit(chromium, site) as page:
        page.goto(addresses(site)["http"])
        for i in range(len(HOSTILE)):
            page.locator("[data-gptedu-widget]").nth(i).scroll_into_view_if_needed()
            page.locator(f"[data-gptedu-widget] >> nth={i}").locator(".demo-html").wait_for()
        for text in HOSTILE[:4]:
            page.get_by_label("Text").first.fill(text)
            page.wait_for_timeout(250)
        shown = page.evaluate(
            "[...document.querySelectorAll('.demo-html')].map((p) => p.textContent)"
        )
        assert shown == HOSTILE
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main p script").count() == 0
        assert page.faults == []


@pytest.mark.browser
def test_pictures_are_saved_as_they_look(chromium: Any, site: Path, tmp_path: Path) -> None:
    write_page(site, Demo(text="the\x01<&>\ud800").book_html())
    with browser.visit(chromium, site, accept_downloads=True) as page:
        page.goto(addresses(site)["http"])
        page.wait_for_selector(LIVE)
        with page.expect_download() as saving:
            page.get_by_role("button", name="Save SVG").click()
        saving.value.save_as(tmp_path / "a.svg")
        assert saving.value.suggested_filename == "gptedu-demo.svg"
        drawing = ElementTree.parse(tmp_path / "a.svg").getroot()
        source = (tmp_path / "a.svg").read_text(encoding="utf-8")
        assert "var(" not in source
        assert "class=" not in source
        assert "rgb(0, 114, 178)" in source  # the colour of queries, written out
        assert "the␁<&>\ufffd" in [node.text for node in drawing.iter() if node.text]

        with page.expect_download() as saving:
            page.get_by_role("button", name="Save PNG").click()
        saving.value.save_as(tmp_path / "a.png")
        width, height, kinds = read_png(tmp_path / "a.png")
        assert width == 2 * int(drawing.get("width"))
        assert height == 2 * int(drawing.get("height"))
        assert kinds > 50  # a picture, not an empty sheet
        assert page.faults == []


def read_png(file: Path) -> tuple[int, int, int]:
    """Width, height and the number of different rows of pixels."""
    stream = io.BytesIO(file.read_bytes())
    assert stream.read(8) == b"\x89PNG\r\n\x1a\n"
    data, width, height = b"", 0, 0
    while head := stream.read(8):
        length, kind = struct.unpack(">I4s", head)
        body = stream.read(length)
        stream.read(4)
        if kind == b"IHDR":
            width, height = struct.unpack(">II", body[:8])
        data += body if kind == b"IDAT" else b""
    raw = zlib.decompress(data)
    size = len(raw) // height
    return width, height, len({raw[i * size + 1 : (i + 1) * size] for i in range(height)})


@pytest.mark.browser
def test_light_dark_narrow_and_paper(chromium: Any, site: Path) -> None:
    write_page(site, Demo().book_html())
    for width in (1100, 360):
        with browser.visit(chromium, site, viewport={"width": width, "height": 800}) as page:
            page.goto(addresses(site)["http"])
            page.wait_for_selector(LIVE)
            light = page.locator("svg").first.inner_html()
            assert axe_findings(page) == []
            page.evaluate("document.documentElement.dataset.theme = 'dark'")
            page.evaluate("document.body.style = 'background: #16151a; color: white'")
            page.wait_for_function("l => document.querySelector('svg').innerHTML !== l", arg=light)
            assert axe_findings(page) == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.evaluate("document.documentElement.dataset.theme = 'light'")
            page.wait_for_function("l => document.querySelector('svg').innerHTML !== l", arg="")
            page.emulate_media(media="print")
            assert not page.get_by_role("button", name="Save PNG").is_visible()
            assert page.locator("svg").first.is_visible()
            small = page.evaluate(
                "[...document.querySelectorAll('svg text')].filter((text) =>"
                " parseFloat(getComputedStyle(text).fontSize) < 11).length"
            )
            assert small == 0
            assert page.faults == []


def axe_findings(page: Any) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]


@pytest.mark.browser
def test_the_page_does_not_jump_while_cells_are_visited(chromium: Any, site: Path) -> None:
    write_page(site, Demo().book_html(), '<p id="below">below</p>')
    with browser.visit(chromium, site) as page:
        page.goto(addresses(site)["http"])
        page.wait_for_selector(LIVE)
        top = "document.querySelector('#below').getBoundingClientRect().top"
        places = {page.evaluate(top)}
        box = page.locator("svg[role=application]").bounding_box()
        for i in range(8):
            page.mouse.move(box["x"] + 60 + 20 * i, box["y"] + 60 + 20 * i)
            places.add(page.evaluate(top))
        page.get_by_role("slider", name="Temperature").focus()
        for _ in range(5):
            page.keyboard.press("ArrowLeft")
            places.add(page.evaluate(top))
        assert len(places) == 1


@pytest.mark.browser
def test_the_notebook_module_runs_with_own_weights(chromium: Any, tmp_path: Path) -> None:
    """The very text that anywidget runs, with a model that has its surface; then new weights."""
    model, other = untrained(CONFIG, seed=21), untrained(CONFIG, seed=22)
    tokenizer = CharTokenizer(SYMBOLS)
    demo = Demo(model=model, tokenizer=tokenizer, text="the cat")
    (tmp_path / "demo.mjs").write_text(Demo._esm, encoding="utf-8")
    state = {name: getattr(demo, name) for name in demo.trait_names(book=True)}
    (tmp_path / "index.html").write_text(
        "<!doctype html><html lang=en><title>x</title><body><div id=place></div>", encoding="utf-8"
    )
    with browser.visit(chromium, tmp_path) as page:
        page.goto(f"{browser.HTTP}/index.html")
        page.evaluate(
            """async ({ state, weights }) => {
              const bytes = (text) => new DataView(
                Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
              const { default: widget } = await import("/demo.mjs");
              window.model = new GptEdu.StaticModel({ ...state, weights: bytes(weights) });
              window.replace = (text) => window.model.set("weights", bytes(text));
              window.close = widget.render({ model: window.model, el: place });
            }""",
            {"state": state, "weights": base64.b64encode(demo.weights).decode()},
        )
        for source in (model, other):
            page.wait_for_selector("#place[data-gptedu-widget=demo][data-gptedu-live]")
            page.locator("svg[role=application]").focus()
            for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
                page.keyboard.press(key)
            ids = torch.tensor([tokenizer.encode("the cat")])
            wanted = float(trace(source, ids).attention[0, 0, 0][2, 0])
            assert page.get_by_role("status").first.inner_text() == f"the␣cat: 2,0 {wanted:.3f}"
            page.get_by_role("button", name="Copy as Python").click()
            page.locator(".gptedu-note code").wait_for()
            assert page.locator(".gptedu-note").inner_text().split(": ", 1)[1].startswith(
                "Demo(model=model, tokenizer=tokenizer, text="
            )  # fmt: skip
            page.evaluate(
                "(text) => window.replace(text)",
                base64.b64encode(host.pack(other, tokenizer)).decode(),
            )
            page.wait_for_function("!document.querySelector('.gptedu-note code')")
        page.evaluate("window.close()")
        assert page.locator("#place > *").count() == 0
        assert page.faults == []


@pytest.mark.browser
def test_helpers_agree_with_torch_and_python(chromium: Any) -> None:
    with browser.visit(chromium) as page:
        page.goto("about:blank")
        for file in host.LIBRARY:
            page.add_script_tag(path=host.STATIC / "lib" / file)
        logits = [random.gauss(0, 3) for _ in range(50)]
        wanted = torch.tensor(logits, dtype=torch.float64).softmax(-1)
        p = page.evaluate("(x) => Array.from(GptEdu.softmax(x))", logits)
        assert torch.allclose(torch.tensor(p, dtype=torch.float64), wanted, atol=1e-12)
        entropy = torch.distributions.Categorical(wanted).entropy()
        assert abs(page.evaluate("(p) => GptEdu.entropy(p)", p) - float(entropy)) < 1e-9
        assert page.evaluate("(x) => GptEdu.argmax(x)", logits) == int(wanted.argmax())
        hidden = page.evaluate("Array.from(GptEdu.softmax([0, -Infinity, 0]))")
        assert hidden == [0.5, 0, 0.5]
        assert page.evaluate("Number.isNaN(GptEdu.softmax([-Infinity, -Infinity])[0])")

        for value in ("a'b\"\n\\", "é🙂\u2028", True, None, [1, [0.5, "x"]], {"a": False}, -3):
            assert eval(page.evaluate("(v) => GptEdu.pythonLiteral(v)", value)) == value
        assert page.evaluate("[-0.001, -1.5, NaN].map((x) => GptEdu.fixed(x))") == [
            "0.00",
            "−1.50",
            "NaN",
        ]
        shown = page.evaluate("['\\n', ' a', '\\t', '\\u0000', '\\u202e', '\\ud800', '\\u200d', "
                              "'a\\u200db'].map(GptEdu.visible)")  # fmt: skip
        assert shown == ["↵", "␣a", "⇥", "␀", "⟨202E⟩", "\ufffd", "⟨200D⟩", "a\u200db"]


@pytest.mark.browser
def test_colours_are_those_of_the_figures(chromium: Any) -> None:
    from matplotlib.colors import to_hex

    from gptedu import plots

    with browser.visit(chromium) as page:
        page.goto("about:blank")
        page.add_style_tag(path=host.STATIC / "widgets.css")
        for file in host.LIBRARY:
            page.add_script_tag(path=host.STATIC / "lib" / file)
        found = page.evaluate(
            """() => {
              const box = GptEdu.h("div", { class: "gptedu-widget" });
              document.body.append(box);
              const { probability, signed, query, key, value, stream } = GptEdu.palette(box);
              const at = [0, 0.25, 0.5, 0.75, 1];
              return { probability: at.map(probability), signed: at.map((t) => signed(2 * t - 1)),
                query, key, value, residual: stream };
            }"""
        )
    for kind in ("probability", "signed"):
        wanted = [to_hex(plots.KINDS[kind](i)) for i in (0, 64, 128, 192, 256)]
        assert found[kind] == wanted
    for role, colour in plots.COLOURS.items():
        assert found[role].lower() == colour.lower()


def test_a_table_is_escaped() -> None:
    source = host.table("a < b", ["", "<i>"], [["&", "'\ud800"]])
    assert html.unescape(source).count("<i>") == 1
    assert "<i>" not in source
    source.encode("utf-8")


def test_widget_without_a_model_needs_none() -> None:
    class Plain(Widget):
        _name = "demo"
        _folder = Demo._folder
        words = traitlets.List(traitlets.Unicode()).tag(sync=True, book=True)

    state = json.loads(_State(Plain(words=["<", "é"]).book_html()).script)
    assert state == {"python": "Plain", "words": ["<", "é"]}
