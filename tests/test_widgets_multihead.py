"""The head explorer: weights, facts and words against `trace`, in Chromium and on any text."""

import base64
import random
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from gptedu import checkpoint
from gptedu.config import GPTConfig
from gptedu.model import GPT
from gptedu.seeds import untrained
from gptedu.tokenizer import BPETokenizer, CharTokenizer
from gptedu.tracing import trace
from gptedu.widgets import HeadExplorer, host
from tests import browser
from tests.widget_page import HOSTILE, findings, little_model, page_with, restored

SYMBOLS = "\n !,:<>/Oacefhimoprtw" + "R"
TOKENIZER = CharTokenizer(SYMBOLS)
CONFIG = GPTConfig(
    vocab_size=TOKENIZER.vocab_size, context_length=48, n_layer=3, n_head=4, n_kv_head=2,
    d_model=32, position="rope", init="torch",
)  # fmt: skip
TEXT = "O Romeo, Romeo!\nO"
LIVE = "[data-gptedu-widget=multihead][data-gptedu-live]"


@pytest.fixture(scope="module")
def model() -> GPT:
    """Sharp heads: random queries and keys, made larger."""
    model = untrained(CONFIG, seed=3)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.query.weight *= 4
    return model


@pytest.fixture(autouse=True)
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: GPT) -> Path:
    """A small model in the place of the shipped one."""
    return little_model(tmp_path / "assets", monkeypatch, model, TOKENIZER)


@contextmanager
def explorer(chromium: Any, weights: Path, options: Any = None, **traits: Any) -> Iterator[Any]:
    widget = HeadExplorer(**{"text": TEXT, **traits})
    folder = weights.parents[1]
    with page_with(chromium, folder, widget, file=weights, **(options or {})) as page:
        yield page
        assert page.faults == []


def attention(model: GPT, text: str) -> torch.Tensor:
    """(L, H, T, T) in Python."""
    return trace(model, torch.tensor([TOKENIZER.encode(text)])).attention[:, 0].double()


def facts(weights: torch.Tensor) -> dict[str, float]:
    """What a head does, from its weights (T, T), by another road than the page's."""
    places = torch.arange(len(weights))
    later = weights[1:]
    link = (weights - weights.diag().diag()).max()
    return {
        "distance": float((later * (places[1:, None] - places)).sum(-1).mean()),
        "self": float(weights.diag()[1:].mean()),
        "previous": float(weights.diag(-1).mean()),
        "first": float(later[:, 0].mean()),
        "evenness": float((torch.special.entr(later).sum(-1) / places[1:].add(1).log()).mean()),
        "link": float(link),
    }


def status(page: Any) -> str:
    return page.get_by_role("status").first.inner_text()


def visible(symbol: str) -> str:
    return {"\n": "↵", " ": "␣"}.get(symbol, symbol)


def place(text: str, at: int) -> str:
    return f"“{visible(text[at])}” ({at + 1})"


PICTURES = {"line": 0, "grid": 1, "map": 2}


def picture(page: Any, name: str) -> Any:
    return page.locator("svg[role=application]").nth(PICTURES[name])


def check_head(page: Any, weights: torch.Tensor, text: str, layer: int, head: int) -> None:
    """The sentence below says of this head what Python says."""
    wanted, words = facts(weights[layer - 1, head - 1]), status(page)
    assert re.search(f"ayer {layer}, head {head} ", words)
    found = re.search(
        r"back ([\d.]+) characters on average: (\d+)% .*? previous character, (\d+)% to the "
        r"character itself, (\d+)% to the first\. "
        r"Strongest link: “(.)” \((\d+)\) reads “(.)” \((\d+)\), (\d+)%\.",
        words,
    )
    assert found, words
    distance, previous, itself, first, _, query, _, key, link = found.groups()
    assert float(distance) == pytest.approx(wanted["distance"], abs=0.0502)
    shares = [wanted[name] for name in ("previous", "self", "first", "link")]
    assert [int(previous), int(itself), int(first), int(link)] == pytest.approx(
        [100 * share for share in shares], abs=0.502
    )
    query, key = int(query) - 1, int(key) - 1
    assert f"{place(text, query)} reads {place(text, key)}, " in words
    assert float(weights[layer - 1, head - 1, query, key]) == pytest.approx(
        wanted["link"], abs=1e-5
    )


def check_grid(page: Any, weights: torch.Tensor) -> None:
    """Below each small map stands how far its head looks back."""
    texts = page.locator("svg[role=application] >> nth=1 >> text").all_text_contents()
    found = [float(text.removesuffix(" back")) for text in texts if text.endswith(" back")]
    wanted = [facts(head)["distance"] for layer in weights for head in layer]
    assert found == pytest.approx(wanted, abs=0.0502)


def tints(page: Any) -> dict[int, tuple[str, str]]:
    """Of each token that the query may read: colour of its box, and the number below."""
    found = page.evaluate(
        """() => {
            const svg = document.querySelector("svg[role=application]"), out = [];
            for (const text of svg.querySelectorAll("text.gptedu-token")) {
              const x = Number(text.getAttribute("x")), y = Number(text.getAttribute("y"));
              const here = (el, dx, dy) => Math.abs(Number(el.getAttribute("x")) - dx) < 12
                && Math.abs(Number(el.getAttribute("y")) - dy) < 2;
              const box = [...svg.querySelectorAll("rect")].find((el) => here(el, x - 9, y - 17));
              const numbers = [...svg.querySelectorAll(".gptedu-number")];
              const number = numbers.find((el) => here(el, x, y + 21));
              out.push([box?.getAttribute("fill") ?? "", number?.textContent ?? "0"]);
            }
            return out;
        }"""
    )
    return {i: (fill, number) for i, (fill, number) in enumerate(found) if fill}


def check_tints(page: Any, row: torch.Tensor, query: int) -> None:
    found = tints(page)
    assert sorted(found) == list(range(query + 1))  # what comes later has no box
    shares = [int(number) for _, number in found.values()]
    assert shares == pytest.approx((100 * row[: query + 1]).tolist(), abs=0.502)
    ramp = page.evaluate(
        "(row) => row.map(GptEdu.palette(document.querySelector('.gptedu-widget')).probability)",
        row[: query + 1].tolist(),
    )
    for (fill, _), wanted in zip(found.values(), ramp, strict=True):
        channels = [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in (fill, wanted)]
        assert channels[0] == pytest.approx(channels[1], abs=1)


# The functions ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench(chromium: Any) -> Iterator[Any]:
    with browser.visit(chromium) as page:
        page.goto("about:blank")
        for file in [host.STATIC / "lib" / name for name in host.LIBRARY]:
            page.add_script_tag(path=file)
        page.add_script_tag(path=host.STATIC / "multihead.js")
        yield page


def made(kind: str, size: int = 12) -> torch.Tensor:
    """Heads that do one thing only."""
    if kind == "previous":
        return torch.eye(size).roll(-1, 1).tril(-1) + torch.eye(size)[:1].T @ torch.eye(size)[:1]
    if kind == "itself":
        return torch.eye(size)
    if kind == "first":
        return torch.eye(size)[:1].repeat(size, 1)
    if kind == "even":
        return torch.ones(size, size).tril() / torch.arange(1.0, size + 1)[:, None]
    return (
        torch.randn(size, size).masked_fill(torch.ones(size, size).triu(1).bool(), -9e9).softmax(-1)
    )


@pytest.mark.browser
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("previous", "mostly reads the previous token"),
        ("itself", "mostly reads the token itself"),
        ("first", "mostly rests on the first token"),
        ("even", "reads almost everything alike"),
        ("random", ""),
    ],
)
def test_facts_and_verdict_of_heads_made_by_hand(bench: Any, kind: str, words: str) -> None:
    weights = made(kind)
    torch.testing.assert_close(weights.sum(-1), torch.ones(12))
    found, verdict = bench.evaluate(
        """(w) => {
            const facts = GptEdu.heads.headFacts(Float32Array.from(w), 12);
            return [facts, GptEdu.heads.verdict(facts, "token")];
        }""",
        weights.flatten().tolist(),
    )
    wanted = facts(weights.double())
    found["link"] = found["link"]["weight"] if found["link"] else 0
    assert found == pytest.approx(wanted, abs=1e-6)
    assert words in verdict


@pytest.mark.browser
def test_small_maps_have_every_cell_in_its_shade(bench: Any) -> None:
    """The paths of a map, filled again cell by cell, are the weights in 32 shades."""
    weights = made("random", 20)
    shades = bench.evaluate(
        "(w) => [...GptEdu.heads.shades(Float32Array.from(w), 20)]", weights.flatten().tolist()
    )
    found = torch.zeros(20, 20)
    for level, path in shades:
        for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", path):
            assert (found[int(y), int(x) : int(x) + int(width)] == 0).all()
            found[int(y), int(x) : int(x) + int(width)] = level
    torch.testing.assert_close(found, (32 * weights).add(0.5).floor(), atol=1, rtol=0)
    assert (found - (32 * weights)).abs().max() < 0.51


# The page -----------------------------------------------------------------------------------------


@pytest.mark.browser
def test_every_head_by_keys_says_what_python_says(chromium: Any, weights: Path, model: GPT) -> None:
    wanted = attention(model, TEXT)
    with explorer(chromium, weights, layer=1) as page:
        check_grid(page, wanted)
        picture(page, "grid").focus()
        for layer in (1, 2, 3):
            for head in (1, 2, 3, 4):
                check_head(page, wanted, TEXT, layer, head)
                check_tints(page, wanted[layer - 1, head - 1, -1], len(TEXT) - 1)
                page.keyboard.press("ArrowRight")
            page.keyboard.press("Home")
            page.keyboard.press("ArrowDown")
        for key in ("End", "ArrowUp", "ArrowUp", "ArrowUp", "ArrowUp"):
            page.keyboard.press(key)
        check_head(page, wanted, TEXT, 1, 4)


@pytest.mark.browser
def test_clicks_choose_heads_tokens_and_cells(chromium: Any, weights: Path, model: GPT) -> None:
    wanted, dice = attention(model, TEXT), random.Random(2)
    with explorer(chromium, weights) as page:
        frames = page.locator("svg[role=application] >> nth=1 >> .gptedu-frame")
        for i in (0, 11, *dice.sample(range(12), 4)):
            frames.nth(i).click(force=True)
            page.mouse.move(0, 0)
            check_head(page, wanted, TEXT, i // 4 + 1, i % 4 + 1)
        layer, head = (int(x) for x in re.search(r"ayer (\d), head (\d)", status(page)).groups())
        one = wanted[layer - 1, head - 1]
        tokens = page.locator("svg[role=application] >> nth=0 >> text.gptedu-token")
        for t in (0, len(TEXT) - 1, *dice.sample(range(len(TEXT)), 3)):
            tokens.nth(t).click(force=True)
            check_tints(page, one[t], t)
            page.mouse.move(0, 0)
            check_tints(page, one[t], t)  # and stays
        picture(page, "line").focus()
        for key, t in (("Home", 0), ("ArrowLeft", 0), ("ArrowRight", 1), ("End", len(TEXT) - 1)):
            page.keyboard.press(key)
            check_tints(page, one[t], t)
        tokens.nth(6).hover(force=True)  # a look, which ends with the pointer
        check_tints(page, one[6], 6)
        most = int(one[6].argmax())
        assert status(page).startswith(f"{place(TEXT, 6)} reads {place(TEXT, most)} most, with ")
        page.mouse.move(0, 0)
        check_tints(page, one[-1], len(TEXT) - 1)
        check_head(page, wanted, TEXT, layer, head)


@pytest.mark.browser
def test_the_large_map_by_keys_has_torchs_numbers(chromium: Any, weights: Path, model: GPT) -> None:
    one = attention(model, TEXT)[1, 2]
    with explorer(chromium, weights, layer=2, head=3, query=9) as page:
        check_tints(page, one[8], 8)
        picture(page, "map").focus()
        at = int(one[8].argmax())  # the cursor starts where the query reads most
        page.keyboard.press("ArrowUp")
        words = (
            f"{place(TEXT, 7)} reads {place(TEXT, at)} with a weight of {float(one[7, at]):.3f}."
        )
        assert status(page) == words or at > 7
        page.keyboard.press("End")
        assert status(page) == f"{place(TEXT, 7)} cannot read {place(TEXT, 16)}: it comes later."
        page.keyboard.press("Home")
        assert status(page).endswith(
            f"reads {place(TEXT, 0)} with a weight of {float(one[7, 0]):.3f}."
        )
        check_tints(page, one[7], 7)
        page.keyboard.press("Escape")
        check_tints(page, one[8], 8)


@pytest.mark.browser
def test_before_training_is_the_model_of_the_seed(chromium: Any, weights: Path, model: GPT) -> None:
    before, after = attention(untrained(CONFIG, seed=77), TEXT), attention(model, TEXT)
    assert (before - after).abs().max() > 0.3
    with explorer(chromium, weights, seed=77, layer=3, head=2) as page:
        choice = page.get_by_label("Weights")
        for word, wanted in (("before", before), ("after", after), ("before", before)):
            choice.select_option(f"{word} training")
            page.wait_for_function(
                "word => document.querySelector('[role=status]').textContent.startsWith(word)",
                arg="Before training, l" if word == "before" else "Layer",
            )
            check_head(page, wanted, TEXT, 3, 2)
            check_tints(page, wanted[2, 1, -1], len(TEXT) - 1)


@pytest.mark.browser
def test_own_text_is_read_cut_and_cleaned(chromium: Any, weights: Path, model: GPT) -> None:
    with explorer(chromium, weights, layer=1) as page:
        field, note = page.get_by_role("textbox", name="Text"), page.locator(".gptedu-line")
        field.fill("Wherefore?")  # no W and no question mark in this vocabulary
        page.wait_for_function("document.body.textContent.includes('Left out: “W” “?”')")
        check_head(page, attention(model, "herefore"), "herefore", 1, 1)
        field.fill("Romeo " * 100)
        page.wait_for_function("document.body.textContent.includes('Only the first 48 of 600')")
        cut = ("Romeo " * 100)[:48]
        check_head(page, attention(model, cut), cut, 1, 1)
        check_grid(page, attention(model, cut))
        field.fill("é")
        page.wait_for_function("document.body.textContent.includes('has one character only')")
        assert "Nothing to read yet" in note.inner_text()
        field.fill("O")
        page.wait_for_function("!document.body.textContent.includes('Nothing to read yet')")
        assert "has one character only, and reads that" in status(page)


@pytest.mark.browser
def test_hostile_text_does_no_harm(chromium: Any, weights: Path) -> None:
    widgets = [HeadExplorer(text=text, layer=99, head=99, query=999) for text in HOSTILE]
    with page_with(chromium, weights.parents[1], *widgets, file=weights) as page:
        shown = page.evaluate(
            """[...document.querySelectorAll(".gptedu-widget")].map((el) =>
                [...el.querySelector("svg").querySelectorAll("text.gptedu-token")]
                .map((text) => text.textContent))"""
        )
        for text, found in zip(HOSTILE, shown, strict=True):
            usable = [visible(c) for c in text if c in SYMBOLS][:48]
            assert found == (usable or ["↵"])
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main p script").count() == 0
        assert page.faults == []


@pytest.mark.browser
def test_nothing_jumps_while_heads_and_tokens_change(chromium: Any, weights: Path) -> None:
    top = "document.querySelector('#below').getBoundingClientRect().top"
    for width in (1000, 360):
        with explorer(chromium, weights, {"viewport": {"width": width, "height": 700}}) as page:
            places = {page.evaluate(top)}
            for name, keys in (("grid", "ArrowRight"), ("line", "ArrowLeft"), ("map", "ArrowUp")):
                picture(page, name).evaluate("(el) => el.focus({ preventScroll: true })")
                for key in (keys, "ArrowDown", keys, "Home", "End"):
                    page.keyboard.press(key)
                    places.add(page.evaluate(top))
            page.get_by_label("Weights").evaluate(
                "(el) => { el.selectedIndex = 1; el.dispatchEvent(new Event('change')); }"
            )
            page.wait_for_function("document.body.textContent.includes('Before training, l')")
            places.add(page.evaluate(top))
            assert len(places) == 1


@pytest.mark.browser
def test_light_dark_narrow_and_paper(chromium: Any, weights: Path, model: GPT) -> None:
    for width in (1100, 360):
        with explorer(chromium, weights, {"viewport": {"width": width, "height": 900}}) as page:
            cells = (
                "[...document.querySelectorAll('svg .gptedu-shade path')].map((p) => p.outerHTML)"
            )
            light = page.evaluate(cells)
            assert findings(page) == []  # it leaves the page dark
            assert page.evaluate(cells) != light
            check_grid(page, attention(model, TEXT))


@pytest.mark.browser
def test_picture_is_saved_and_the_line_of_python_restores_all(
    chromium: Any, weights: Path, tmp_path: Path
) -> None:
    traits = {"text": "Romeo, O", "trained": False, "layer": 2, "head": 3, "query": 4}
    with explorer(chromium, weights, {"accept_downloads": True}, **traits) as page:
        for kind in ("SVG", "PNG"):
            with page.expect_download() as saving:
                page.get_by_role("button", name=f"Save {kind}").click()
            saving.value.save_as(tmp_path / kind)
        drawing = ElementTree.parse(tmp_path / "SVG").getroot()
        texts = [node.text for node in drawing.iter() if node.text]
        assert {"All heads", "layer 3", "head 4", "Layer 2, head 3", "␣"} <= set(texts)
        assert sum(node.tag.endswith("path") for node in drawing.iter()) > 12 * 3
        head = (tmp_path / "PNG").read_bytes()
        size = [2 * int(drawing.get(side)) for side in ("width", "height")]
        assert list(struct.unpack(">II", head[16:24])) == size
        assert len(head) > 10_000
        same = HeadExplorer(**traits)
        assert restored(page, HeadExplorer).book_state() == same.book_state()


@pytest.mark.browser
def test_own_model_in_a_notebook_with_many_heads_and_bpe(chromium: Any, tmp_path: Path) -> None:
    """The module that anywidget runs, with a model of another shape; then newer weights."""
    text = "O Romeo, Romeo! wherefore art thou Romeo?"
    bpe = BPETokenizer.train(text, 12)
    config = GPTConfig(
        vocab_size=bpe.vocab_size, context_length=20, n_layer=6, n_head=12, d_model=48,
        position="learned", init="torch",
    )  # fmt: skip
    models = [untrained(config, seed) for seed in (1, 2)]
    widget = HeadExplorer(model=models[0], tokenizer=bpe, text=text, layer=6, head=11)
    (tmp_path / "heads.mjs").write_text(HeadExplorer._esm, encoding="utf-8")
    (tmp_path / "index.html").write_text(
        "<!doctype html><html lang=en><title>x</title><body><div id=place></div>", encoding="utf-8"
    )
    with browser.visit(chromium, tmp_path) as page:
        page.goto(f"{browser.HTTP}/index.html")
        page.evaluate(
            """async ({ state, weights }) => {
              const { default: widget } = await import("/heads.mjs");
              window.send = (text) =>
                new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
              window.model = new GptEdu.StaticModel({ ...state, weights: send(weights) });
              widget.render({ model: window.model, el: place });
            }""",
            {"state": widget.book_state() | {"model_name": ""}, "weights": in_base64(widget)},
        )
        ids = torch.tensor([bpe.encode(text)[:20]])
        previous = ""
        for model in models:
            widget.show(model, bpe)
            page.evaluate("text => window.model.set('weights', send(text))", in_base64(widget))
            page.wait_for_function(
                "old => document.querySelector('[data-gptedu-live] [role=status]')?.textContent"
                "?.includes('on average') && document.querySelector('[role=status]').textContent"
                " !== old",
                arg=previous,
            )
            previous = status(page)
            wanted = facts(trace(model, ids).attention[5, 0, 10].double())
            found = re.search(r"^Layer 6, head 11 .* back ([\d.]+) tokens on average", previous)
            assert float(found[1]) == pytest.approx(wanted["distance"], abs=0.0502)
        assert page.locator("svg[role=application] >> nth=1 >> .gptedu-frame").count() == 72
        assert page.faults == []


SHIPPED = host.STATIC.parents[1] / "assets" / "shakespeare-mini.safetensors"
shipped = pytest.mark.skipif(not SHIPPED.is_file(), reason="the shipped weights are not here")


@shipped
@pytest.mark.browser
def test_the_shipped_model_answers_in_time(chromium: Any, weights: Path) -> None:
    """The quickest of several, as other work shares the cores. Another head, another text."""
    weights.write_bytes(SHIPPED.read_bytes())
    real, tokenizer = checkpoint.load(SHIPPED)
    text = "O Romeo, Romeo! wherefore"
    with explorer(chromium, weights, text=text) as page:
        wanted = trace(real, torch.tensor([tokenizer.encode(text)])).attention[:, 0].double()
        check_head(page, wanted, text, 2, 1)
        head, typed = page.evaluate(
            """async () => {
              const grid = document.querySelectorAll("svg[role=application]")[1];
              const timed = (act) => new Promise((resolve) => {
                const start = performance.now();
                const observer = new MutationObserver(() => {
                  observer.disconnect();
                  resolve(performance.now() - start);
                });
                observer.observe(grid, { attributes: true, attributeFilter: ["aria-label"] });
                act();
              });
              const press = (key) => () =>
                grid.dispatchEvent(new KeyboardEvent("keydown", { key }));
              const field = document.querySelector("textarea");
              const type = (i) => () => {
                field.value += "abcdefghijklm"[i];
                field.dispatchEvent(new Event("change"));
              };
              const heads = [], texts = [];
              for (let i = 0; i < 13; i++) heads.push(await timed(press(i % 2 ? "Home" : "End")));
              for (let i = 0; i < 13; i++) texts.push(await timed(type(i)));
              return [Math.min(...heads), Math.min(...texts)];
            }"""
        )
        assert head < 40
        assert typed < 100


def in_base64(widget: host.ModelWidget) -> str:
    return base64.b64encode(widget.weights).decode()


# Python -------------------------------------------------------------------------------------------


def test_the_table_without_javascript_has_traces_numbers(model: GPT) -> None:
    rows = re.findall(r"layer (\d), head (\d)</th><td>([\d.]+)", HeadExplorer(text=TEXT).fallback())
    assert len(rows) == 12
    wanted = attention(model, TEXT)
    for layer, head, distance in rows:
        found = facts(wanted[int(layer) - 1, int(head) - 1])["distance"]
        assert float(distance) == pytest.approx(found, abs=0.0501)


@pytest.mark.parametrize("name", ["layer", "head", "query"])
def test_places_are_counted_from_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 must be 1 or more"):
        HeadExplorer(**{name: 0})
