"""The gradient-flow explorer: its record is measured again, in part, by the command that made it.

Then in Chromium: the lines are the record's, and the sentence says what Python reads there.
"""

import importlib.util
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from gptedu.widgets import GradientFlow, block, host
from tests.widget_page import bare_page, findings, milliseconds, page_with, restored

TOOL = Path(__file__).parents[1] / "book" / "_tools" / "gradient_flow.py"
RECORD = json.loads(block.FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gradient_flow", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The record ---------------------------------------------------------------------------------------


def test_the_record_is_light_and_whole(tool: ModuleType) -> None:
    assert block.FILE.stat().st_size < 60_000
    assert RECORD["command"] == f"python book/_tools/{TOOL.name}"
    assert (RECORD["start"], RECORD["training"]) == (tool.START, tool.TRAINING)
    cases = {f"{init}/{wiring}" for init in block.INITS for wiring in block.WIRINGS}
    assert RECORD["measured"].keys() == cases
    for found in RECORD["measured"].values():
        for name in ("gradient", "stream"):
            assert [len(line) for line in found[name]] == RECORD["depths"]
        for run in found["training"].values():
            assert len(run["gradient"]) in (0, RECORD["training"]["n_layer"])
            assert all(math.isfinite(x) for x in run["loss"])


@pytest.mark.parametrize("case", ["torch/post", "gpt2/no residual", "xavier/none"])
def test_the_record_is_measured_again(tool: ModuleType, monkeypatch: Any, case: str) -> None:
    monkeypatch.setattr(tool, "DEPTHS", [4])
    init, wiring = case.split("/")
    found = tool.measure_start(tool.text_ids(), tool.START, wiring, init)
    for name, (line,) in found.items():
        assert line == pytest.approx(RECORD["measured"][case][name][0], rel=0.02)


def test_pre_and_post_norm_are_those_of_the_package(tool: ModuleType) -> None:
    """The tool's own wiring against `Block`, with the same weights."""
    ids = tool.text_ids()[:32].view(2, 16)
    for wiring in ("pre", "post"):
        words = {"vocab_size": int(ids.max()) + 1, "n_layer": 3, "d_model": 16, "n_head": 2}
        wired = tool.make_model(wiring, "torch", 1, context_length=16, **words)
        plain = tool.GPT(wired.config)
        plain.load_state_dict(wired.state_dict())
        assert wired.config.norm_position == wiring
        assert (wired(ids) - plain(ids)).abs().max() < 1e-5


def test_what_the_chapter_says_is_in_the_record() -> None:
    def losses(case: str) -> tuple[float, float]:
        runs = RECORD["measured"][case]["training"]
        return runs["at once"]["loss"][-1], runs["warmup"]["loss"][-1]

    stuck = RECORD["unigram"] - 0.1
    post = losses("torch/post")
    assert post[1] < stuck < post[0]  # warm-up saves it
    for case in ("torch/pre", "gpt2/pre", "gpt2/post", "xavier/pre"):
        assert max(losses(case)) < stuck
    assert min(losses("torch/no residual")) > stuck
    assert RECORD["measured"]["xavier/none"]["training"]["at once"]["loss"] == []


def test_own_gradients_and_what_is_refused() -> None:
    assert GradientFlow(own=[0.12345, 2]).own == [0.123, 2.0]
    with pytest.raises(ValueError, match="was backward"):
        GradientFlow(own=[1.0, float("nan")])
    with pytest.raises(ValueError, match="depth=7 was not measured"):
        GradientFlow(depth=7)
    assert "no residual" in GradientFlow().fallback()
    assert len(host.to_json(GradientFlow().book_state())) < 60_000


# The page -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(chromium: Any) -> Iterator[Any]:
    with bare_page(chromium, "block.js") as page:
        yield page


def state(**changes: Any) -> dict[str, Any]:
    widget = GradientFlow(**changes)
    return widget.book_state()


@pytest.mark.browser
@pytest.mark.parametrize("show", block.SHOWN)
def test_lines_are_the_records(plain: Any, show: str) -> None:
    for warmup in (False, True):
        now = state(show=show, warmup=warmup, depth=12, init="gpt2", own=[0.5, 0.25])
        found = plain.evaluate("(state) => GptEdu.flow.linesOf(state)", now)
        run = "warmup" if warmup else "at once"
        for wiring in block.WIRINGS:
            measured = RECORD["measured"][f"gpt2/{wiring}"]
            training = measured["training"][run]
            at = RECORD["depths"].index(12)
            wanted = training["gradient"] if show == "later" else measured[show][at]
            assert found["blocks"][wiring] == wanted
            assert found["losses"][wiring] == training["loss"]
        assert found["blocks"].get("yours") == (None if show == "stream" else [0.5, 0.25])


@pytest.mark.browser
def test_numbers_in_words(plain: Any) -> None:
    say = "(x) => GptEdu.flow.words(x)"
    numbers = {0.4512: "0.45", 12: "12", 1.31e-7: "1.3 × 10⁻⁷", 5.8e36: "5.8 × 10³⁶"}
    assert {x: plain.evaluate(say, x) for x in numbers} == numbers


@pytest.mark.browser
def test_every_choice_has_its_sentence_and_its_lines(chromium: Any, tmp_path: Path) -> None:
    with page_with(chromium, tmp_path, GradientFlow(wiring="post", depth=4)) as page:
        words = page.locator(".gptedu-status")
        line = RECORD["measured"]["torch/post"]["gradient"][0]
        assert f"the gradient is {line[0]:.2g} at block 1" in words.inner_text()
        loss = RECORD["measured"]["torch/post"]["training"]["at once"]["loss"][-1]
        assert f"a loss of {loss:.2f} in" in words.inner_text()
        assert "no better than knowing how often each letter occurs" in words.inner_text()
        page.get_by_label("warm-up").check()
        page.wait_for_function("document.body.innerText.includes('it learns')")

        page.get_by_label("Wiring").select_option("no norm")
        page.get_by_label("Weights drawn").select_option("Xavier, as in Xiong et al.")
        page.wait_for_function("document.body.innerText.includes('break down within')")
        assert page.locator("[data-line=none]").count() == 1  # its loss was no number at once
        page.get_by_label("Show").select_option("gradient, after 20 steps")
        page.wait_for_function("document.body.innerText.includes('before a gradient')")
        assert page.get_by_role("slider", name="Blocks").is_disabled()

        page.get_by_label("Wiring").select_option("no residual")
        page.get_by_label("Show").select_option("size of the stream, at the start")
        page.get_by_label("Weights drawn").select_option("GPT-2’s, small")
        depth = page.get_by_role("slider", name="Blocks")
        depth.press("End")
        line = RECORD["measured"]["gpt2/no residual"]["stream"][-1]
        page.wait_for_function("document.body.innerText.includes('48 blocks: the stream’s size')")
        power = math.floor(math.log10(line[-1]))
        assert f"{line[-1] / 10.0**power:.1f} × 10⁻" in words.inner_text()
        again = restored(page, GradientFlow)
        assert (again.wiring, again.init, again.depth) == ("no residual", "gpt2", 48)
        assert (again.show, again.warmup) == ("stream", True)
        assert page.faults == []


@pytest.mark.browser
def test_own_gradients_in_the_page(chromium: Any, tmp_path: Path) -> None:
    with page_with(chromium, tmp_path, GradientFlow(own=[3.0, 2.0, 1.0])) as page:
        assert page.locator("[data-line=yours]").count() == 1
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy as Python").click()
        line = page.locator(".gptedu-note code").inner_text()
        made = eval(line, {"GradientFlow": GradientFlow, "gradients": [3.0, 2.0, 1.0]})
        assert made.own == [3.0, 2.0, 1.0]


OVERPRINTED = """[...document.querySelectorAll("svg")].flatMap((picture) => {
    const texts = [...picture.querySelectorAll("text")].map((e) => [e.textContent, e.getBoundingClientRect()]);
    return texts.flatMap(([name, a], n) => texts.slice(0, n).filter(([, b]) =>
        Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4).map(([other]) => [name, other]));
})"""  # noqa: E501


@pytest.mark.browser
def test_no_text_is_printed_over_another(chromium: Any, tmp_path: Path) -> None:
    """On a telephone, in all states; with Xavier's weights the names crowd at the lower edge."""
    size = {"width": 360, "height": 800}
    with page_with(chromium, tmp_path, GradientFlow(init="xavier"), viewport=size) as page:
        for label in ("Weights drawn", "Show", "Wiring"):
            menu = page.get_by_label(label)
            for n in range(menu.locator("option").count()):
                menu.select_option(index=n)
                for key in ("Home", "End"):
                    page.get_by_role("slider", name="Blocks").press(key)
                    page.wait_for_timeout(30)
                    assert page.evaluate(OVERPRINTED) == []
            if label != "Wiring":  # go on with Xavier's, and with the size of the stream
                menu.select_option(index=2)


@pytest.mark.browser
@pytest.mark.parametrize("width", [1100, 360])
def test_looks_saves_and_is_quick(chromium: Any, tmp_path: Path, width: int) -> None:
    size = {"width": width, "height": 800}
    with page_with(
        chromium, tmp_path, GradientFlow(), viewport=size, accept_downloads=True
    ) as page:
        top = "document.querySelector('#below').getBoundingClientRect().top + scrollY"
        places = [page.evaluate(top)]
        depth = page.get_by_role("slider", name="Blocks")
        for key in ("Home", "End", "ArrowLeft", "PageDown"):
            depth.press(key)
            page.wait_for_timeout(40)
            places.append(page.evaluate(top))
        assert max(places) - min(places) < 2
        assert (
            min(milliseconds(page, "depth", n) for n in (0, 7, 3, 2, 5)) < 100
        )  # places on the slider
        for kind in ("SVG", "PNG"):
            with page.expect_download() as saving:
                page.get_by_role("button", name=f"Save {kind}").click()
            saving.value.save_as(tmp_path / kind)
        texts = [node.text for node in ElementTree.parse(tmp_path / "SVG").getroot().iter()]
        assert {"pre-norm", "post-norm", "no norm", "no residual"} <= set(texts)
        assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
        assert findings(page) == []
        assert page.faults == []
