"""The next-character laboratory: its filters against `gptedu.sampling`, ties and edges too.

The draws are compared with numpy; what a reader sees, and what the model writes, with PyTorch.
"""

import base64
import json
import math
import random
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from gptedu import checkpoint, sampling, seeds
from gptedu.config import GPTConfig
from gptedu.generation import generate, window_start
from gptedu.model import GPT
from gptedu.seeds import untrained
from gptedu.tokenizer import BPETokenizer, CharTokenizer
from gptedu.widgets import NextCharacterLaboratory, host
from tests import browser
from tests.widget_page import HOSTILE, findings, little_model, page_with, restored

SYMBOLS = "\n !',:EMORaefhimortuwy"
TOKENIZER = CharTokenizer(SYMBOLS)
V = TOKENIZER.vocab_size
CONFIG = GPTConfig(
    vocab_size=V, context_length=16, n_layer=2, n_head=2, d_model=16, position="rope", init="torch"
)
LIVE = "[data-gptedu-widget=generation][data-gptedu-live]"
URL = f"{browser.HTTP}/index.html"


@pytest.fixture(scope="module")
def model() -> GPT:
    return untrained(CONFIG, seed=3)


@pytest.fixture(autouse=True)
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: GPT) -> Path:
    """A small model in the place of the shipped one."""
    return little_model(tmp_path / "assets", monkeypatch, model, TOKENIZER)


@contextmanager
def laboratory(chromium: Any, weights: Path, options: Any = None, **traits: Any) -> Iterator[Any]:
    lab = NextCharacterLaboratory(**traits)
    with page_with(chromium, weights.parents[1], lab, file=weights, **(options or {})) as page:
        yield page
        assert page.faults == []


def button(page: Any, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def status(page: Any) -> str:
    return page.get_by_role("status").first.inner_text()


def sheet(page: Any) -> str:
    return page.locator(".gptedu-sheet").evaluate("(el) => el.textContent")


def wait_for_text(page: Any, text: str) -> None:
    page.wait_for_function(
        "text => document.querySelector('.gptedu-sheet').textContent === text", arg=text
    )


def chances(model: GPT, text: str, t: float, k: int | None, p: float) -> list[torch.Tensor]:
    """The stages in Python: the model's, and after each filter."""
    ids = TOKENIZER.encode(text)
    ids = ids[window_start(len(ids), CONFIG.context_length) :]
    with torch.no_grad():
        logits = model(torch.tensor([ids]))[0, -1].double()
    stages = [logits, sampling.temperature(logits, t)]
    stages.append(sampling.top_k(stages[-1], k) if k else stages[-1])
    stages.append(sampling.top_p(stages[-1], p))
    return [stage.softmax(-1) for stage in stages]


def written(model: GPT, prompt: str, n: int, seed: int, t: float, k: int | None, p: float) -> str:
    """What the page should write: at position i the seed's i-th number falls into the shares."""
    text = prompt
    numbers = seeds.Random(seed).even(len(prompt) + n)
    for _ in range(n):
        shares = chances(model, text, t, k, p)[-1].numpy()
        text += SYMBOLS[int(np.searchsorted(np.cumsum(shares), numbers[len(text)], side="right"))]
    return text


# The functions ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench(chromium: Any) -> Iterator[Any]:
    """A page with the script alone."""
    with browser.visit(chromium) as page:
        page.goto("about:blank")
        for file in [host.STATIC / "lib" / name for name in host.LIBRARY]:
            page.add_script_tag(path=file)
        page.add_script_tag(path=host.STATIC / "generation.js")
        yield page


def filtered(bench: Any, logits: list[float], t: float, k: int | None, p: float) -> Any:
    return bench.evaluate(
        """([logits, temperature, top_k, top_p]) => GptEdu.sampling
            .stages(Float64Array.from(logits), { temperature, top_k, top_p })
            .map((stage) => Array.from(stage))""",
        [logits, t, k, p],
    )


LOGITS = {
    "random": [3 * random.Random(1).gauss(0, 1) for _ in range(40)],
    "ties": [float(random.Random(2).randrange(4)) for _ in range(40)],
    "equal": [1.5] * 12,
    "one": [-2.0],
    "halves": [math.log(0.25), math.log(0.5), math.log(0.25)],
    "certain": [0.0, 800.0, -800.0],
}


@pytest.mark.browser
@pytest.mark.parametrize("name", LOGITS)
def test_filters_are_those_of_python(bench: Any, name: str) -> None:
    logits = torch.tensor(LOGITS[name], dtype=torch.float64)
    size = len(logits)
    for t in (0, 0.05, 0.7, 1, 2):
        for k in (None, 1, 2, 5, size - 1 or 1, size, size + 9):
            for p in (0.01, 0.25, 0.5, 0.75, 0.76, 0.99, 1):
                wanted = [logits, sampling.temperature(logits, t)]
                wanted.append(sampling.top_k(wanted[-1], k) if k else wanted[-1])
                wanted.append(sampling.top_p(wanted[-1], p))
                found = filtered(bench, LOGITS[name], t, k, p)
                for one, other in zip(found, wanted, strict=True):
                    one = torch.tensor(one, dtype=torch.float64)
                    torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


@pytest.mark.browser
def test_bad_settings_are_refused_as_in_python(bench: Any) -> None:
    for setting in ((-1, None, 1), (math.nan, None, 1), (1, 0, 1), (1, 2.5, 1), (1, None, 0)):
        with pytest.raises(Exception, match="must be"):
            filtered(bench, [0.0, 1.0], *setting)
    for words in ({"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}):
        with pytest.raises(ValueError, match=f"{next(iter(words))}=.* must be"):
            NextCharacterLaboratory(model=untrained(CONFIG), tokenizer=TOKENIZER, **words)


@pytest.mark.browser
def test_draws_are_numpys(bench: Any) -> None:
    shares = torch.tensor(LOGITS["random"]).double().softmax(-1).numpy()
    shares[3] = shares[17] = 0
    shares /= shares.sum()
    numbers = [0.0, *seeds.Random(5).even(200), 1 - 1e-16]
    found = bench.evaluate(
        "([p, us]) => us.map((u) => GptEdu.sampling.draw(p, u))", [shares.tolist(), numbers]
    )
    wanted = np.searchsorted(np.cumsum(shares), numbers, side="right")
    assert found[:-1] == wanted[:-1].tolist()
    assert found[-1] == len(shares) - 1
    assert set(found).isdisjoint({3, 17})


@pytest.mark.browser
def test_numbers_jump_and_the_window_moves_as_in_python(bench: Any) -> None:
    for seed in (0, 1, 99, 2**32 - 1):
        found = bench.evaluate(
            "(seed) => [...Array(300).keys()].map((n) => GptEdu.sampling.evenNumber(seed, n))", seed
        )
        assert found == seeds.Random(seed).even(300).tolist()
    for context in (1, 2, 5, 16, 128):
        found = bench.evaluate(
            "(c) => [...Array(600).keys()].map((n) => GptEdu.sampling.windowStart(n, c))", context
        )
        assert found == [window_start(n, context) for n in range(600)]


@pytest.mark.browser
@pytest.mark.parametrize("position", ["rope", "learned"])
def test_what_was_read_is_read_once_and_the_logits_are_torchs(bench: Any, position: str) -> None:
    """Texts that grow, shrink, change in the middle, and pass the context, in one after another."""
    config = GPTConfig(**{**CONFIG.to_dict(), "position": position})
    model = untrained(config, seed=3)
    dice = random.Random(4)
    ids = [dice.randrange(V) for _ in range(40)]
    other = [*ids[:9], (ids[9] + 1) % V, *ids[10:]]
    texts = [ids[:3], ids[:4], ids[:4], ids[:12], other[:11], ids[:12], ids[:16], ids[:17],
             ids[:18], ids[:16], ids[:40], other[:40], ids[:1]]  # fmt: skip
    found = bench.evaluate(
        """async ([config, seed, texts]) => {
            const model = GptEdu.untrained(config, seed), out = [];
            const run = model.run.bind(model);
            let fresh = 0;
            model.run = (ids, options) => ((fresh += ids.length), run(ids, options));
            const read = GptEdu.sampling.reader(model);
            for (const ids of texts) {
              fresh = 0;
              const logits = Array.from(await read(ids));
              out.push({ logits, fresh });
            }
            return out;
        }""",
        [config.to_dict(), 3, texts],
    )
    for text, one in zip(texts, found, strict=True):
        window = text[window_start(len(text), config.context_length) :]
        with torch.no_grad():
            wanted = model(torch.tensor([window]))[0, -1]
        torch.testing.assert_close(torch.tensor(one["logits"]), wanted, rtol=0, atol=1e-4)
    # grows by one: one is read; the same again: none; changed at index 9: from there on
    assert [one["fresh"] for one in found] == [3, 1, 0, 8, 2, 3, 4, 9, 1, 16, 16, 1, 1]


@pytest.mark.browser
def test_a_newer_question_stops_the_one_before_and_spoils_nothing(bench: Any) -> None:
    found = bench.evaluate(
        """async (config) => {
            const read = GptEdu.sampling.reader(GptEdu.untrained(config, 3));
            const ids = [...Array(16).keys()];
            await read(ids);
            // this one has written into the cache when it is stopped
            const second = read([0, 1, ...Array(14).fill(9)]).then(() => "done", (e) => e.name);
            const third = await read(ids);
            return [await second, Array.from(third)];
        }""",
        CONFIG.to_dict() | {"d_model": 256, "head_dim": 128, "d_ff": 1024, "n_layer": 4},
    )
    config = GPTConfig(**CONFIG.to_dict() | {"d_model": 256, "head_dim": 128, "d_ff": 1024,
                                             "n_layer": 4})  # fmt: skip
    with torch.no_grad():
        wanted = untrained(config, 3)(torch.arange(16)[None])[0, -1]
    assert found[0] == "AbortError"
    torch.testing.assert_close(torch.tensor(found[1]), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.browser
def test_a_diverged_model_says_so(bench: Any) -> None:
    with pytest.raises(Exception, match="its training has diverged"):
        bench.evaluate(
            """async (config) => {
                const model = GptEdu.untrained(config, 3);
                model.tensors.get("head.weight").data.fill(NaN);
                await GptEdu.sampling.reader(model)([1, 2]);
            }""",
            CONFIG.to_dict(),
        )


# The page -----------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize("way", ["http", "file"])
def test_it_writes_what_python_would(
    chromium: Any, tmp_path: Path, weights: Path, model: GPT, way: str
) -> None:
    """Far past the context of 16; stopped, and continued as if it never had been."""
    wanted = written(model, "ROMEO:", 400, 7, 0.8, None, 1)
    with laboratory(chromium, weights, prompt="ROMEO:", seed=7) as page:
        if way == "file":
            page.goto((tmp_path / "site" / "index.html").as_uri())
            page.wait_for_selector(LIVE)
        for name in ("Step", "Step", "Step", "Back"):
            button(page, name).click()
        wait_for_text(page, wanted[:8])
        button(page, "Write").click()
        page.wait_for_function("document.querySelector('.gptedu-sheet').textContent.length > 45")
        assert page.get_by_role("status").first.get_attribute("aria-live") == "off"
        button(page, "Stop").click()
        assert page.get_by_role("status").first.get_attribute("aria-live") == "polite"
        page.wait_for_timeout(150)
        text = sheet(page)
        assert 45 < len(text) < 120
        assert text == wanted[: len(text)]
        start = window_start(len(text), 16)
        line = f"The model sees the last {len(text) - start} of {len(text)} characters"
        assert page.locator(".gptedu-line").inner_text().startswith(line)
        past = page.evaluate(
            "[...document.querySelectorAll('.gptedu-past')].map((el) => el.textContent).join('')"
        )
        assert past == text[:start]
        button(page, "Step").click()
        wait_for_text(page, wanted[: len(text) + 1])
        button(page, "Clear").click()
        wait_for_text(page, "ROMEO:")


@pytest.mark.browser
def test_greedy_is_generates_greedy(chromium: Any, weights: Path, model: GPT) -> None:
    ids = torch.tensor([TOKENIZER.encode("O\n")])
    wanted = "O\n" + TOKENIZER.decode(list(islice(generate(model, ids, 25, temperature=0), 25)))
    with laboratory(chromium, weights, prompt="O\n", temperature=0.0) as page:
        for i in range(25):
            button(page, "Step").click()
            wait_for_text(page, wanted[: i + 3])
        assert "The filters leave 1 of 22 characters. Greedy choice is" in status(page)


def shown(page: Any) -> tuple[list[str], list[list[str]]]:
    """The rows of the chart as a reader sees them: name, and what stands at each stage."""
    texts = page.evaluate(
        """[...document.querySelectorAll('.gptedu-choices text')].map((text) => {
            const { x, y, width } = text.getBBox();
            return [x + width, Math.round(Number(text.getAttribute("y"))), text.textContent];
        })"""
    )
    rows: dict[int, list[tuple[float, str]]] = {}
    for x, y, words in texts:
        if y > 40:
            rows.setdefault(y, []).append((x, words))
    lines = [[words for _, words in sorted(row)] for _, row in sorted(rows.items())]
    return [line[0] for line in lines], [line[1:] for line in lines]


def visible(symbol: str) -> str:
    return {"\n": "↵", " ": "␣"}.get(symbol, symbol)


def check_chart(page: Any, model: GPT, text: str, t: float, k: int | None, p: float) -> None:
    stages = chances(model, text, t, k, p)
    order = stages[0].argsort(descending=True, stable=True).tolist()
    names, cells = shown(page)
    assert names == [visible(SYMBOLS[i]) for i in order[:11]] + [f"+{V - 11}"]
    groups = [[i] for i in order[:11]] + [order[11:]]
    for ids, found in zip(groups, cells, strict=True):
        wanted = []
        for stage in stages:
            mass = float(stage[ids].sum())
            if mass == 0:
                wanted.append("out")
                break
            wanted.append(100 * mass)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert one == other or abs(float(one) - float(other)) < 0.0502
    left = int((stages[3] > 0).sum())
    assert f"The filters leave {left} of {V} characters." in status(page)
    top = visible(SYMBOLS[order[0]])
    assert f"the model's favourite is “{top}” ({100 * float(stages[0][order[0]]):.1f}%)" in status(
        page
    )


@pytest.mark.browser
def test_sliders_by_mouse_and_keys_show_pythons_numbers(
    chromium: Any, weights: Path, model: GPT
) -> None:
    dice = random.Random(6)
    with laboratory(
        chromium, weights, {"viewport": {"width": 1000, "height": 900}}, prompt="ROMEO:\n"
    ) as page:
        check_chart(page, model, "ROMEO:\n", 0.8, None, 1)
        sliders = {
            name: page.get_by_role("slider", name=name)
            for name in ("Temperature", "Top-k", "Top-p", "Seed")
        }

        def read() -> tuple[float, int | None, float]:
            words = [sliders[name].get_attribute("aria-valuetext") for name in list(sliders)[:3]]
            return (
                float(words[0]),
                None if words[1] == "all" else int(words[1]),
                1 if words[2] == "all" else float(words[2]),
            )

        for key in ("End", "Home", "ArrowRight"):
            for name, slider in sliders.items():
                slider.focus()
                page.keyboard.press(key)
                if name != "Seed":
                    check_chart(page, model, "ROMEO:\n", *read())
        assert read() == (0.05, 2, 0.02)
        for _ in range(6):
            for slider in sliders.values():
                box = slider.bounding_box()
                place = {"x": box["width"] * dice.random(), "y": box["height"] / 2}
                slider.click(position=place)
            check_chart(page, model, "ROMEO:\n", *read())
        for edge in (1, -1):  # to the ends by mouse
            for slider in sliders.values():
                box = slider.bounding_box()
                x = box["width"] - 1 if edge > 0 else 1
                slider.click(position={"x": x, "y": box["height"] / 2})
            check_chart(page, model, "ROMEO:\n", *read())
        assert read() == (0, 1, 0.01)


@pytest.mark.browser
def test_the_seed_draws_and_the_mark_stands_where_it_says(
    chromium: Any, weights: Path, model: GPT
) -> None:
    with laboratory(chromium, weights, prompt="O Romeo") as page:
        found = set()
        for seed in range(12):
            page.get_by_role("slider", name="Seed").fill(str(seed))
            wanted = written(model, "O Romeo", 1, seed, 0.8, None, 1)[-1]
            page.wait_for_function(
                "words => document.body.textContent.includes(words)",
                arg=f"Seed {seed} draws “{visible(wanted)}”",
            )
            names, _ = shown(page)
            mark = page.locator(".gptedu-choices path[d$=z]").evaluate("(el) => el.getBBox().y")
            row = round((mark - 44.5) / 21)
            assert names[row] == visible(wanted) or row == 11
            assert ("one of the others" in status(page)) == (row == 11)
            found.add(wanted)
        assert len(found) > 3


@pytest.mark.browser
def test_a_click_or_enter_chooses(chromium: Any, weights: Path) -> None:
    with laboratory(chromium, weights, prompt="O Romeo", top_k=2) as page:
        text, (names, _) = "O Romeo", shown(page)
        sign = {"↵": "\n", "␣": " "}
        chart = page.locator(".gptedu-choices")
        box = chart.bounding_box()
        chart.hover(position={"x": box["width"] / 2, "y": 40 + 21 * 4 + 10})
        assert f"“{names[4]}”:" in status(page)
        assert "from the model" in status(page)
        assert "out after top-k. Click or Enter writes it." in status(page)
        chart.click(position={"x": 20, "y": 40 + 21 * 4 + 10})
        text += sign.get(names[4], names[4])  # also one that the filters took out
        wait_for_text(page, text)
        page.mouse.move(0, 0)
        assert f"After “{'␣'.join(text.split(' '))}”" in status(page).replace("\n", "↵")

        chart.focus()
        names, _ = shown(page)
        for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
            page.keyboard.press(key)
        assert f"“{names[1]}”:" in status(page)
        page.keyboard.press("Enter")
        text += sign.get(names[1], names[1])
        wait_for_text(page, text)
        page.keyboard.press("End")
        assert f"The {V - 11} others together" in status(page)
        page.keyboard.press("Enter")  # no single character: nothing is written
        page.keyboard.press("Backspace")
        wait_for_text(page, text[:-1])
        page.keyboard.press("Escape")
        assert "the model's favourite" in status(page)


@pytest.mark.browser
def test_what_the_model_never_met_is_left_out_kindly(chromium: Any, weights: Path) -> None:
    with laboratory(chromium, weights, prompt="Römeo 2?") as page:
        assert sheet(page) == "Rmeo "
        note = page.locator(".gptedu-line")
        assert "Left out: “ö” “2” “?”, which this model never met." in note.inner_text()
        button(page, "Step").click()
        page.wait_for_function("document.querySelector('.gptedu-sheet').textContent.length === 6")
        page.get_by_label("Prompt").fill("日本")  # another prompt: what was written goes
        wait_for_text(page, "\n")
        assert "Without a prompt it starts after “↵”." in note.inner_text()
        page.get_by_label("Prompt").fill("")
        wait_for_text(page, "\n")
        page.get_by_label("Prompt").fill("Romeo " * 1500)
        page.wait_for_function("document.body.textContent.includes('Only the last 2,000')")
        assert len(sheet(page)) == 2000


@pytest.mark.browser
def test_hostile_text_does_no_harm(chromium: Any, weights: Path) -> None:
    labs = [NextCharacterLaboratory(prompt=text, written=text) for text in HOSTILE]
    with page_with(chromium, weights.parents[1], *labs, file=weights) as page:
        sheets = page.evaluate(
            "[...document.querySelectorAll('.gptedu-sheet')].map((el) => el.textContent)"
        )
        for text, found in zip(HOSTILE, sheets, strict=True):
            usable = "".join(c for c in text if c in SYMBOLS)
            assert found == (usable[-2000:] or "\n") + usable
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main p script").count() == 0
        assert page.faults == []


@pytest.mark.browser
def test_nothing_jumps_while_it_writes(chromium: Any, weights: Path) -> None:
    with laboratory(
        chromium, weights, {"viewport": {"width": 800, "height": 500}}, prompt="ROMEO:\n" * 12
    ) as page:
        button(page, "Write").click()
        page.evaluate("window.scrollTo(0, 40)")
        places = set()
        for _ in range(25):
            page.wait_for_timeout(40)
            places.add(
                page.evaluate(
                    """JSON.stringify([scrollY, ...["#below", ".gptedu-sheet", ".gptedu-choices",
                      ".gptedu-primary", ".gptedu-menu"].map((name) => {
                        const { top, width } = document.querySelector(name).getBoundingClientRect();
                        return [top, width];
                    })])"""
                )
            )
        assert len(places) == 1
        bottom = "(el) => el.scrollHeight - el.scrollTop - el.clientHeight"
        assert page.locator(".gptedu-sheet").evaluate(bottom) < 30  # it follows the text
        page.locator(".gptedu-sheet").evaluate("(el) => (el.scrollTop = 0)")
        page.wait_for_timeout(300)
        assert page.locator(".gptedu-sheet").evaluate("(el) => el.scrollTop") == 0  # unless we read
        assert page.locator(".gptedu-fresh").count() <= 10


@pytest.mark.browser
def test_a_run_ends_by_itself_and_a_full_sheet_says_so(chromium: Any, weights: Path) -> None:
    with laboratory(chromium, weights, written="Romeo " * 666) as page:  # 3,996 of 4,000
        button(page, "Write").click()
        page.wait_for_function("document.body.textContent.includes('The sheet is full')")
        button(page, "Write").wait_for()
        assert len(sheet(page)) == len("ROMEO:\n") + 4000
        button(page, "Step").click()
        page.wait_for_timeout(100)
        assert len(sheet(page)) == len("ROMEO:\n") + 4000
        button(page, "Clear").click()
        wait_for_text(page, "ROMEO:\n")


@pytest.mark.browser
def test_light_dark_narrow_paper_and_calm(chromium: Any, weights: Path) -> None:
    traits = {"written": "O Romeo, Romeo! O Romeo", "top_k": 4, "top_p": 0.7}
    for width in (1100, 360):
        options = {"viewport": {"width": width, "height": 900}, "reduced_motion": "reduce"}
        with laboratory(chromium, weights, options, **traits) as page:
            style = "(el) => getComputedStyle(el).animationName"
            assert page.locator(".gptedu-caret").evaluate(style) == "none"
            assert findings(page) == []
            assert not button(page, "Write").is_visible()  # on paper
            assert page.locator(".gptedu-choices").is_visible()


@pytest.mark.browser
def test_picture_is_saved_and_the_line_of_python_restores_all(
    chromium: Any, weights: Path, tmp_path: Path
) -> None:
    traits = {"temperature": 1.25, "top_k": 3, "top_p": 0.9, "seed": 42, "written": "e\nO"}
    with laboratory(
        chromium, weights, {"accept_downloads": True}, prompt="Romeo", **traits
    ) as page:
        for kind in ("SVG", "PNG"):
            with page.expect_download() as saving:
                button(page, f"Save {kind}").click()
            saving.value.save_as(tmp_path / kind)
            assert saving.value.suggested_filename == f"gptedu-generation.{kind.lower()}"
        drawing = ElementTree.parse(tmp_path / "SVG").getroot()
        texts = [node.text for node in drawing.iter() if node.text]
        assert {"temperature", "1.25", "out", f"+{V - 11}"} <= set(texts)
        head = (tmp_path / "PNG").read_bytes()
        size = [2 * int(drawing.get(side)) for side in ("width", "height")]
        assert list(struct.unpack(">II", head[16:24])) == size
        assert len(head) > 10_000  # a picture, not an empty sheet
        same = NextCharacterLaboratory(prompt="Romeo", **traits)
        assert restored(page, NextCharacterLaboratory).book_state() == same.book_state()


SHIPPED = host.STATIC.parents[1] / "assets" / "shakespeare-mini.safetensors"
shipped = pytest.mark.skipif(not SHIPPED.is_file(), reason="the shipped weights are not here")


@shipped
@pytest.mark.browser
def test_the_shipped_model_answers_in_time(chromium: Any, weights: Path) -> None:
    """The quickest of several, as other work shares the cores. A slider, one more character."""
    weights.write_bytes(SHIPPED.read_bytes())
    real, tokenizer = checkpoint.load(SHIPPED)
    with laboratory(chromium, weights) as page:
        with torch.no_grad():
            logits = real(torch.tensor([tokenizer.encode("ROMEO:\n")]))[0, -1]
        best = tokenizer.symbols[int(logits.argmax())]
        assert f"favourite is “{best}” ({100 * float(logits.softmax(-1).max()):.1f}%)" in status(
            page
        )
        slider, typed = page.evaluate(
            """async () => {
              const chart = document.querySelector(".gptedu-choices");
              const timed = (act) => new Promise((resolve) => {
                const start = performance.now();
                const observer = new MutationObserver(() => {
                  observer.disconnect();
                  resolve(performance.now() - start);
                });
                observer.observe(chart, { childList: true });
                act();
              });
              const input = document.querySelector("input[type=range]");
              const move = (value) => () => {
                input.value = value;
                input.dispatchEvent(new Event("input"));
              };
              const step = [...document.querySelectorAll("button")]
                .find((b) => b.textContent === "Step");
              const slider = [], typed = [];
              for (let i = 0; i < 15; i++) slider.push(await timed(move(0.1 * i + 0.1)));
              for (let i = 0; i < 15; i++) typed.push(await timed(() => step.click()));
              return [Math.min(...slider), Math.min(...typed)];
            }"""
        )
        assert slider < 20
        assert typed < 50


@pytest.mark.browser
def test_own_model_in_a_notebook_also_with_bpe(chromium: Any, tmp_path: Path, model: GPT) -> None:
    """The module that anywidget runs; then `show` sends another model with another tokenizer."""
    text = "O Romeo, Romeo! wherefore art thou Romeo?"
    bpe = BPETokenizer.train(text, 20)
    other = untrained(GPTConfig(**CONFIG.to_dict() | {"vocab_size": bpe.vocab_size}), seed=8)
    lab = NextCharacterLaboratory(model=model, tokenizer=TOKENIZER, prompt="Romeo", temperature=0)
    (tmp_path / "lab.mjs").write_text(NextCharacterLaboratory._esm, encoding="utf-8")
    (tmp_path / "index.html").write_text(
        "<!doctype html><html lang=en><title>x</title><body><div id=place></div>", encoding="utf-8"
    )
    state = lab.book_state() | {"model_name": ""}
    with browser.visit(chromium, tmp_path) as page:
        page.goto(URL)
        page.evaluate(
            """async ({ state, weights }) => {
              const { default: widget } = await import("/lab.mjs");
              window.send = (text) =>
                new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
              window.model = new GptEdu.StaticModel({ ...state, weights: send(weights) });
              widget.render({ model: window.model, el: place });
            }""",
            {"state": state, "weights": in_base64(lab)},
        )
        page.wait_for_selector(LIVE)
        wanted = "Romeo" + TOKENIZER.decode(
            list(generate(model, torch.tensor([TOKENIZER.encode("Romeo")]), 3, temperature=0))
        )
        for i in range(3):
            button(page, "Step").click()
            wait_for_text(page, wanted[: 6 + i])

        lab.show(other, bpe)
        page.evaluate("text => window.model.set('weights', send(text))", in_base64(lab))
        page.wait_for_function("document.body.textContent.includes('tokens, and has room')")
        button(page, "Clear").click()
        wait_for_text(page, "Romeo")
        ids = bpe.encode("Romeo")
        wanted_ids = list(generate(other, torch.tensor([ids]), 12, temperature=0))
        for i in range(12):
            button(page, "Step").click()
            wait_for_text(page, bpe.decode(ids + wanted_ids[: i + 1]))


def in_base64(widget: host.ModelWidget) -> str:
    return base64.b64encode(widget.weights).decode()


# Python -------------------------------------------------------------------------------------------


def test_the_table_without_javascript_has_pythons_numbers(weights: Path, model: GPT) -> None:
    lab = NextCharacterLaboratory(prompt="O Römeo", temperature=0.5, top_k=3, top_p=0.8)
    stages = chances(model, "O Rmeo", 0.5, 3, 0.8)
    rows = re.findall(r"<tr><th[^>]*>(.*?)</th>(.*?)</tr>", lab.fallback().split("<tbody>")[1])
    order = stages[0].argsort(descending=True).tolist()
    assert len(rows) == 8
    for i, (_, cells) in zip(order, rows, strict=False):
        found = re.findall(r"(\d+)%", cells)
        assert [int(cell) for cell in found] == pytest.approx(
            [100 * float(stage[i]) for stage in stages], abs=0.51
        )
    state = json.loads(re.search(r"json\">(.*?)</script>", lab.book_html())[1])
    assert state == lab.book_state()
    assert state["model_name"] == "shakespeare-mini"
