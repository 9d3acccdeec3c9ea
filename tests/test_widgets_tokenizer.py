"""The tokenizer explorer: what the page shows and learns, against Python's BPE.

In Chromium on a plain page. The tokens on the screen are read from the picture and decoded; the
merges that JavaScript learns from a text are those of `BPETokenizer.train`.
"""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import traitlets

from gptedu.corpus import pocket_plays
from gptedu.tokenizer import BPETokenizer, CharTokenizer, split_words
from gptedu.widgets import host
from gptedu.widgets.tokenizer import TokenizerExplorer
from tests import browser
from tests.widget_page import HOSTILE, findings, milliseconds, page_with, restored

TEXT = "the cat and the hat and the bat that sat"
MIXED = "né 👩‍🔬 => <b> שלום\nZoë\u3000你好 the lady"


def test_the_page_gets_merges_of_the_plays_or_the_readers_own() -> None:
    explorer = TokenizerExplorer()
    assert len(explorer.bpe["merges"]) == 300
    assert set(explorer.characters["symbols"]) <= set(pocket_plays.sample(50_000, seed=1))
    bpe = BPETokenizer.train(TEXT, 5)
    own = TokenizerExplorer(tokenizer=bpe, step=2)
    assert own.bpe == bpe.to_dict()
    assert own.corpus == "your tokenizer"
    assert TokenizerExplorer(tokenizer=CharTokenizer("ab")).characters["symbols"] == "ab"
    with pytest.raises(traitlets.TraitError, match="learn_from"):
        TokenizerExplorer(learn_from="thin air")


@pytest.mark.parametrize("text", [TEXT, MIXED, *HOSTILE])
def test_fallback_lists_the_tokens(text: str) -> None:
    source = TokenizerExplorer(text=text).fallback()
    bpe = BPETokenizer.from_dict(TokenizerExplorer().bpe)
    ids = bpe.encode(text.encode("utf-8", "ignore").decode()[:200])
    assert re.findall(r"<td>(\d+)</td>", source) == [str(i) for i in ids]
    assert "<script" not in source
    assert "<img" not in source


# The page -----------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize("text", [TEXT, MIXED, "aaaa aaa", "", pocket_plays.sample(600, seed=3)])
def test_javascript_learns_the_merges_of_python(chromium: Any, text: str) -> None:
    with browser.visit(chromium) as page:
        page.goto("about:blank")
        for file in (*(f"lib/{name}" for name in host.LIBRARY), "tokenizer.js"):
            page.add_script_tag(path=host.STATIC / file)
        found = page.evaluate("(text) => GptEdu.tokenizerExplorer.learn(text, 40)", text)
        wanted = BPETokenizer.train(text, 40).merges if text else []
        assert [tuple(pair) for pair in found] == wanted
        lengths = [len(word.encode()) for word in split_words(text)]
        places = page.evaluate("(n) => GptEdu.tokenizerExplorer.layout(n, 9)", lengths)
        assert len(places) == sum(lengths)
        assert len(set(map(tuple, places))) == len(places)
        assert sorted(places) == places  # in reading order
        assert all(0 <= column < 9 for _, column in places)
        start = 0
        for length in lengths:  # a word that a line can hold is never broken
            lines = {line for line, _ in places[start : start + length]}
            assert len(lines) == 1 or length > 9
            start += length


def numbers(page: Any) -> tuple[list[str], list[str]]:
    """The ids in the picture: of the characters, then of the tokens; – is a character without."""
    rows = page.locator("svg").first.locator("text.gptedu-number").all()
    tops = sorted({float(row.get_attribute("y")) for row in rows})
    upper = set(tops[0::2])
    both: tuple[list[str], list[str]] = ([], [])
    for row in rows:
        both[float(row.get_attribute("y")) not in upper].append(row.text_content())
    return both


def expected(bpe: BPETokenizer, step: int, text: str) -> list[str]:
    return [str(i) for i in BPETokenizer(bpe.merges[:step]).encode(text)]


@pytest.mark.browser
def test_tokens_are_those_of_python_at_every_step(chromium: Any, tmp_path: Path) -> None:
    bpe = BPETokenizer.from_dict(TokenizerExplorer().bpe)
    symbols = CharTokenizer.from_dict(TokenizerExplorer().characters)
    with page_with(chromium, tmp_path, TokenizerExplorer(text=MIXED)) as page:
        wanted = [str(symbols.ids.get(sign, "–")) for sign in MIXED]
        slider = page.get_by_role("slider", name="Merges")
        height = page.locator("svg").first.bounding_box()["height"]
        for key, step in (("Home", 0), ("ArrowRight", 1), ("PageUp", None), ("End", 300)):
            slider.press(key)
            step = int(slider.input_value()) if step is None else step
            page.wait_for_function("n => document.body.textContent.includes(n)",
                                   arg=f"(vocabulary {256 + step},")  # fmt: skip
            assert numbers(page) == (wanted, expected(bpe, step, MIXED))
            assert page.locator("svg").first.bounding_box()["height"] == height
        faces = page.locator("svg").first.locator("text.gptedu-token").all_text_contents()
        assert {"👩", "⟨200D⟩", "<", "=", "↵", "␣lady", "F0", "9F"} <= set(faces)
        assert "id 555" in page.locator(".gptedu-status").inner_text()
        assert restored(page, TokenizerExplorer).step == 300
        assert page.faults == []


@pytest.mark.browser
def test_buttons_step_to_the_merges_that_change_the_text(chromium: Any, tmp_path: Path) -> None:
    bpe = BPETokenizer.from_dict(TokenizerExplorer().bpe)
    counts = [len(BPETokenizer(bpe.merges[:n]).encode(TEXT)) for n in range(301)]
    changing = [n for n in range(1, 301) if counts[n] < counts[n - 1]]
    with page_with(chromium, tmp_path, TokenizerExplorer(text=TEXT, step=0)) as page:
        status = page.locator(".gptedu-status")
        assert status.inner_text().startswith("No merge yet: every token is one byte. 40")
        for n in changing:
            page.get_by_role("button", name="Next merge").click()
            page.wait_for_function("w => document.body.textContent.includes(w)",
                                   arg=f"Merge {n} joins")  # fmt: skip
            lost = counts[n - 1] - counts[n]
            words = {1: "once", 2: "twice"}.get(lost, f"{lost} times")
            assert f": {words} in this text, outlined." in status.inner_text()
            assert f"{counts[n]} BPE tokens" in status.inner_text()
            assert page.locator("svg").first.locator("rect[stroke-width='2']").count() == lost
        page.get_by_role("button", name="Next merge").click()  # there is none
        page.get_by_role("button", name="Back").click()
        page.wait_for_function("w => document.body.textContent.includes(w)",
                               arg=f"Merge {changing[-2]} joins")  # fmt: skip
        assert page.faults == []


@pytest.mark.browser
def test_the_page_learns_from_the_readers_own_text(chromium: Any, tmp_path: Path) -> None:
    own = BPETokenizer.train(TEXT, 300)
    with page_with(chromium, tmp_path, TokenizerExplorer(text=TEXT, step=0)) as page:
        page.get_by_label("Learnt from").select_option("the text above")
        page.wait_for_function("document.body.textContent.includes('is merged next')")
        assert "“a” “t” 5, " in page.locator(".gptedu-pairs").inner_text()
        slider = page.get_by_role("slider", name="Merges")
        slider.press("End")
        page.wait_for_function("document.body.textContent.includes('No pair is left')")
        assert slider.input_value() == str(len(own.merges))
        assert numbers(page)[1] == expected(own, 300, TEXT)
        page.get_by_label("Text", exact=True).fill("so so")
        page.wait_for_function("document.body.textContent.includes('2 BPE tokens')")
        assert numbers(page)[1] == ["256", "257"]
        again = restored(page, TokenizerExplorer)
        assert (again.text, again.learn_from) == ("so so", "text")
        assert page.faults == []


@pytest.mark.browser
def test_a_tokenizer_of_ones_own(chromium: Any, tmp_path: Path) -> None:
    bpe = BPETokenizer.train(TEXT, 6)
    with page_with(chromium, tmp_path, TokenizerExplorer(tokenizer=bpe, text="that")) as page:
        assert numbers(page)[1] == [str(i) for i in bpe.encode("that")]
        assert page.get_by_label("Learnt from").locator("option").first.inner_text() == (
            "your tokenizer"
        )
        assert page.get_by_role("slider", name="Merges").get_attribute("max") == "6"


@pytest.mark.browser
def test_hostile_text_does_no_harm(chromium: Any, tmp_path: Path) -> None:
    widgets = [TokenizerExplorer(text=text) for text in HOSTILE]
    with page_with(chromium, tmp_path, *widgets) as page:
        words = page.locator(".gptedu-status").all_inner_texts()
        assert "Shown and counted: the first 200 of 10,000 characters." in words[-2]
        assert "0 characters" in words[-1]
        assert "Half characters are left out." in words[HOSTILE.index("\ud800 half")]
        page.get_by_label("Learnt from").first.select_option("the text above")
        for text in HOSTILE[:6]:
            page.get_by_label("Text", exact=True).first.fill(text)
            page.wait_for_timeout(200)
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main p script").count() == 0
        assert not page.locator("[data-gptedu-error]").count()
        assert page.faults == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [1100, 360])
def test_looks(chromium: Any, tmp_path: Path, width: int) -> None:
    widgets = [TokenizerExplorer(text=MIXED, step=100),
               TokenizerExplorer(text=TEXT, step=4, learn_from="text")]  # fmt: skip
    size = {"width": width, "height": 800}
    with page_with(chromium, tmp_path, *widgets, viewport=size) as page:
        assert findings(page) == []
        assert page.faults == []


@pytest.mark.browser
def test_saved_pictures_a_page_that_stays_and_quick_answers(chromium: Any, tmp_path: Path) -> None:
    explorer = TokenizerExplorer(text=pocket_plays.sample(200, seed=1))
    with page_with(chromium, tmp_path, explorer, accept_downloads=True) as page:
        with page.expect_download() as saving:
            page.get_by_role("button", name="Save SVG").click()
        saving.value.save_as(tmp_path / "a.svg")
        words = [node.text for node in ElementTree.parse(tmp_path / "a.svg").getroot().iter()]
        assert "tokens of this text" in words
        with page.expect_download() as saving:
            page.get_by_role("button", name="Save PNG").click()
        assert saving.value.suggested_filename == "gptedu-tokenizer.png"
        top = "document.querySelector('#below').getBoundingClientRect().top + scrollY"
        places, times = set(), []
        for step in (2, 40, 100, 299, 150):
            times.append(milliseconds(page, "step", step))
            places.add(page.evaluate(top))
        assert min(times) < 150  # a quarter of that where nothing else runs
        assert len(places) == 1
