"""The mask laboratory: its numbers against `gptedu.attention`, its red flag against gradients.

In Chromium on a plain page: what JavaScript computes is compared with what PyTorch computes, and
the words that a reader sees with both.
"""

import itertools
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
import traitlets

from gptedu.attention import attention, causal_mask
from gptedu.seeds import untrained
from gptedu.tokenizer import CharTokenizer
from gptedu.tracing import trace
from gptedu.widgets import host
from gptedu.widgets.attention import MASKS, MaskLaboratory, may_see, vectors_of
from tests import browser
from tests.widget_page import (
    CONFIG,
    HOSTILE,
    SYMBOLS,
    findings,
    little_model,
    milliseconds,
    page_with,
    restored,
)

TEXT = "O Romeo, Romeo!"


@pytest.fixture(autouse=True)
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return little_model(tmp_path / "assets", monkeypatch)


# Python -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "power", "temperature"), [(16, 0.5, 1.0), (3, 0.2, 0.4)])
def test_numbers_are_those_of_attention(window: int, power: float, temperature: float) -> None:
    lab = MaskLaboratory(text=TEXT, length=9, window=window, power=power, temperature=temperature)
    q, k = vectors_of(TEXT[:9], 4, 1)
    scale = 4**-power / temperature
    mask = causal_mask(9, window=window)
    wanted = attention(q, k, k, mask, scale)[1]
    torch.testing.assert_close(lab.numbers().weights, wanted)
    lab.mask = "inverted"
    wanted = attention(q, k, k, ~mask, scale)[1]
    torch.testing.assert_close(lab.numbers().weights, wanted, equal_nan=True)
    assert lab.numbers().weights[-1].isnan().all() == (window == 16)
    lab.mask, lab.window = "off", 16
    torch.testing.assert_close(lab.numbers().weights, attention(q, k, k, None, scale)[1])
    lab.mask, lab.window = "after", window
    wanted = attention(q, k, k, None, scale)[1] * mask
    torch.testing.assert_close(lab.numbers().weights, wanted)


def test_a_character_has_its_vectors_wherever_it_stands_and_their_spread_is_one() -> None:
    q, k = vectors_of("oxo", 4, 7)
    assert torch.equal(q[0], q[2])
    assert not torch.equal(q[0], q[1])
    assert not torch.equal(q[0], k[0])
    many = torch.cat(vectors_of("".join(map(chr, range(32, 1000))), 16, 3))
    assert abs(float(many.var()) - 1) < 0.02
    assert abs(float(many.mean())) < 0.02


@pytest.mark.parametrize(("layer", "head"), [(1, 1), (2, 4)])
def test_vectors_of_the_model_give_its_own_attention(layer: int, head: int) -> None:
    lab = MaskLaboratory(text="O Romeo é Romeo", vectors="model", length=12, layer=layer, head=head)
    known = "O Romeo  Romeo"[:12]
    ids = torch.tensor([CharTokenizer(SYMBOLS).encode(known)])
    wanted = trace(untrained(CONFIG, seed=5), ids).attention[layer - 1, 0, head - 1]
    numbers = lab.numbers()
    assert numbers.names == list(known)
    torch.testing.assert_close(numbers.weights.float(), wanted, atol=1e-6, rtol=1e-5)


def test_what_cannot_be_shown_is_refused_and_an_own_model_is_looked_at() -> None:
    with pytest.raises(traitlets.TraitError, match="mask"):
        MaskLaboratory(mask="sideways")
    with pytest.raises(traitlets.TraitError, match="temperature"):
        MaskLaboratory(temperature=0.0)
    own = MaskLaboratory(model=untrained(CONFIG), tokenizer=CharTokenizer(SYMBOLS))
    assert own.vectors == "model"
    assert "<table>" in own.fallback()
    for text in HOSTILE:
        assert "hacked = 1</script>" not in MaskLaboratory(text=text).fallback()


# JavaScript ---------------------------------------------------------------------------------------


def flag_by_gradient(mask: str, window: int, T: int) -> bool:
    """Does any output move when a later key or value does? Asked of PyTorch, not of the masks."""
    q, k = vectors_of(TEXT[:T], 4, 1)
    k.requires_grad_()
    v = torch.randn(T, 3, dtype=torch.float64, requires_grad=True)
    seen = may_see(mask, T, window)
    for i in range(T - 1):  # the last query has no future
        row = seen[i : i + 1]
        if mask == "after":
            out = (attention(q[i : i + 1], k, v)[1] * row) @ v
        else:
            out = attention(q[i : i + 1], k, v, row)[0]
        grads = torch.autograd.grad(out.sum(), (k, v))
        if any(grad[i + 1 :].abs().max() > 0 for grad in grads):
            return True
    return False


@pytest.mark.browser
def test_javascript_agrees_with_torch_and_flags_what_gradients_flag(chromium: Any) -> None:
    with browser.visit(chromium) as page:
        page.goto("about:blank")
        for file in (*(f"lib/{name}" for name in host.LIBRARY), "attention.js"):
            page.add_script_tag(path=host.STATIC / file)
        found_flags = set()
        for mask, window, T in itertools.product(MASKS, (1, 3, 16), (1, 2, 7)):
            lab = MaskLaboratory(text=TEXT, length=T, mask=mask, window=window, power=0.3,
                                 temperature=0.7, seed=12)  # fmt: skip
            settings = {"mask": mask, "window": window, "power": 0.3, "temperature": 0.7}
            found = page.evaluate(
                """([names, settings]) => {
                  const { vectorsOf, laboratory, verdict } = GptEdu.maskLaboratory;
                  const lab = laboratory(vectorsOf(names, 4, 12), settings);
                  const list = (name) => [name, [...lab[name]]];
                  const lists = ["scores", "scaled", "weights", "sums"].map(list);
                  return { ...Object.fromEntries(lists), ...verdict(lab) };
                }""",
                [list(TEXT[:T]), settings],
            )
            numbers = lab.numbers()
            for name in ("scores", "scaled", "weights"):
                mine = torch.tensor(found[name], dtype=torch.float64).view(T, T)
                wanted = getattr(numbers, name)
                torch.testing.assert_close(mine, wanted, atol=1e-12, rtol=1e-12, equal_nan=True)
            sums = torch.tensor(found["sums"], dtype=torch.float64)
            torch.testing.assert_close(sums, numbers.weights.sum(-1), equal_nan=True)
            assert found["leaks"] == flag_by_gradient(mask, window, T), (mask, window, T)
            assert ("NaN" in found["words"]) == bool(numbers.weights.isnan().any())
            assert found["words"].startswith("The future leaks" if found["leaks"] else "Nothing")
            found_flags.add((mask, found["leaks"]))
        assert {mask for mask, leaks in found_flags if leaks} == {"off", "inverted", "after"}


def shown(page: Any) -> dict[str, str]:
    """The written-out sum, by step."""
    pairs = page.locator(".gptedu-derivation > div")
    return {
        row.locator("dt").inner_text(): row.locator("dd").inner_text().replace("\u2007", "")
        for row in pairs.all()
    }


@pytest.mark.browser
def test_keys_choose_a_cell_in_all_maps_and_its_sum_is_written_out(
    chromium: Any, tmp_path: Path
) -> None:
    lab = MaskLaboratory(text=TEXT, cell=[0, 0], temperature=0.5)
    numbers = lab.numbers()
    with page_with(chromium, tmp_path, lab) as page:
        assert page.locator("svg[role=application]").count() == 4
        page.locator("svg[role=application]").nth(2).focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        rows = shown(page)
        assert list(rows) == ["1 score", "2 scaled", "3 masked", "4 softmax"]
        for row, wanted in zip(rows.values(), (numbers.scores, numbers.scaled, numbers.scaled,
                                               numbers.weights), strict=True):  # fmt: skip
            assert row.replace("−", "-").endswith(f"{wanted[3, 1]:.2f}")
        assert "query 3 “o”, key 1 “␣”" in rows["1 score"]
        products = re.findall(r"(−?\d\.\d\d)·(−?\d\.\d\d)", rows["1 score"])
        terms = [float(a.replace("−", "-")) * float(b.replace("−", "-")) for a, b in products]
        assert len(terms) == 4
        assert sum(terms) == pytest.approx(float(numbers.scores[3, 1]), abs=0.05)
        powers = numbers.scaled[3, :4].exp()
        assert f"/ {powers.sum():.2f} =" in rows["4 softmax"]
        assert "(1/√4) / 0.5" in rows["2 scaled"]

        boxes = page.locator("rect.gptedu-cursor")
        places = {(boxes.nth(n).get_attribute("x"), boxes.nth(n).get_attribute("y"))
                  for n in range(4)}  # fmt: skip
        assert len(places) == 1  # the same cell in every map
        page.keyboard.press("End")
        assert "key 7 comes after query 3: hidden, becomes −∞" in shown(page)["3 masked"]
        assert restored(page, MaskLaboratory).cell == [3, 7]

        box = page.locator("svg[role=application]").nth(0).bounding_box()
        page.mouse.move(box["x"] + box["width"] - 6, box["y"] + box["height"] - 50)
        assert "query 7 “,”, key 7 “,”" in shown(page)["1 score"]  # hovering shows
        page.mouse.move(2, 2)
        assert "query 3 “o”, key 7 “,”" in shown(page)["1 score"]  # and leaves no trace
        page.mouse.click(box["x"] + box["width"] - 6, box["y"] + box["height"] - 50)
        page.mouse.move(2, 2)
        assert "query 7 “,”, key 7 “,”" in shown(page)["1 score"]  # a click keeps
        assert page.faults == []


@pytest.mark.browser
def test_controls_go_to_their_ends_and_the_flag_follows(chromium: Any, tmp_path: Path) -> None:
    with page_with(chromium, tmp_path, MaskLaboratory(text=TEXT + TEXT)) as page:
        status = page.locator(".gptedu-status")
        assert status.inner_text().startswith("Nothing leaks")
        sums = page.get_by_role("img", name="Row sums")
        for label, words in {
            "off": "⚑ The future leaks: no mask hides it.",
            "inverted": "Query 7 sees no key: every score is −∞, and 0 / 0 is NaN.",
            "after the softmax": "⚑ The future leaks: the mask comes after the softmax",
            "causal": "Nothing leaks",
        }.items():
            page.get_by_label("Mask", exact=True).select_option(label)
            page.wait_for_function("w => document.body.textContent.includes(w)", arg=words)
            flagged = page.locator(".gptedu-status.gptedu-flag").count() == 1
            assert flagged == (label != "causal")
            named = sums.get_attribute("aria-label")
            assert ("NaN" in named) == (label == "inverted")
            value = {"off": "off", "inverted": "inverted", "causal": "causal"}.get(label, "after")
            wanted = MaskLaboratory(text=TEXT, mask=value).numbers().weights.sum(-1)
            found = [float(x) for x in named.removeprefix("Row sums: ").split(", ")]
            torch.testing.assert_close(torch.tensor(found).double(), wanted, atol=6e-3, rtol=0,
                                       equal_nan=True)  # fmt: skip

        for label in ("Length T", "Window", "Scale", "Temperature"):
            slider = page.get_by_role("slider", name=label)
            slider.focus()
            for key in ("Home", "ArrowRight", "End", "ArrowLeft"):
                before = page.locator(".gptedu-lab").inner_html()
                page.keyboard.press(key)
                if not (label == "Window" and key in ("End", "ArrowLeft")):  # 15 of 8 is all
                    page.wait_for_function(
                        "b => document.querySelector('.gptedu-lab').innerHTML !== b", arg=before
                    )
        slider = page.get_by_role("slider", name="Scale")
        slider.focus()
        page.keyboard.press("Home")
        for _ in range(10):
            page.keyboard.press("ArrowRight")
        assert slider.get_attribute("aria-valuetext").strip("\u2007") == "1/√D"
        page.get_by_role("button", name="New vectors").click()
        again = restored(page, MaskLaboratory)
        assert (again.length, again.window, again.power) == (15, 15, 0.5)
        assert (again.temperature, again.seed) == (2.9, 2)
        assert page.faults == []


@pytest.mark.browser
def test_a_head_of_the_model_shows_its_own_attention(
    chromium: Any, tmp_path: Path, weights: Path
) -> None:
    lab = MaskLaboratory(text="O Romeo é!", length=6)
    with page_with(chromium, tmp_path, lab, file=weights) as page:
        assert not any("weights" in url for url in page.asked)  # nothing heavy before it is wanted
        page.get_by_label("Queries and keys").select_option("of the model")
        page.get_by_role("slider", name="Head").wait_for()
        page.get_by_role("slider", name="Layer").press("End")
        page.get_by_role("slider", name="Head").press("End")
        lab = restored(page, MaskLaboratory)
        assert (lab.vectors, lab.layer, lab.head) == ("model", 2, 4)
        page.locator("svg[role=application]").first.focus()
        page.keyboard.press("ArrowLeft")
        row = shown(page)["4 softmax"]
        i, j = restored(page, MaskLaboratory).cell
        assert row.endswith(f"= {lab.numbers().weights[min(i, 5), min(j, 5)]:.2f}")
        assert "… 4 more …" in shown(page)["1 score"] or CONFIG.head_dim <= 8
        page.get_by_label("Text").fill("é!O")
        page.wait_for_function("document.body.textContent.includes('does not know “é”')")
        page.get_by_label("Text").fill("é")
        page.wait_for_function("document.body.textContent.includes('There is no text')")
        assert page.faults == []


@pytest.mark.browser
def test_hostile_text_does_no_harm(chromium: Any, tmp_path: Path) -> None:
    labs = [MaskLaboratory(text=text, length=16) for text in HOSTILE]
    with page_with(chromium, tmp_path, *labs) as page:
        words = page.locator(".gptedu-status").all_inner_texts()
        assert "Shown: the first 16 of 10,000 tokens." in words[-2]
        assert words[-1] == "There is no text to look at: type some."
        for text in HOSTILE[:6]:
            page.get_by_label("Text").first.fill(text)
            page.wait_for_timeout(200)
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main p script").count() == 0
        assert not page.locator("[data-gptedu-error]").count()
        assert page.faults == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [1100, 360])
def test_looks(chromium: Any, tmp_path: Path, width: int) -> None:
    labs = [MaskLaboratory(), MaskLaboratory(mask="inverted", length=16, head_dim=64)]
    size = {"width": width, "height": 800}
    with page_with(chromium, tmp_path, *labs, viewport=size) as page:
        boxes = [box.bounding_box() for box in page.locator("svg[role=application]").all()[:4]]
        rows = {round(box["y"]) for box in boxes}
        assert len(rows) == (1 if width > 600 else 2)
        assert len({round(box["width"]) for box in boxes}) == 1
        assert findings(page) == []
        assert page.faults == []


@pytest.mark.browser
def test_pictures_are_saved_and_the_page_stays_where_it_is(chromium: Any, tmp_path: Path) -> None:
    with page_with(chromium, tmp_path, MaskLaboratory(), accept_downloads=True) as page:
        with page.expect_download() as saving:
            page.get_by_role("button", name="Save SVG").click()
        saving.value.save_as(tmp_path / "a.svg")
        words = [node.text for node in ElementTree.parse(tmp_path / "a.svg").getroot().iter()]
        assert {"1 scores q·k", "3 masked", "4 softmax", "sum", "1.00"} <= set(words)
        with page.expect_download() as saving:
            page.get_by_role("button", name="Save PNG").click()
        assert saving.value.suggested_filename == "gptedu-attention.png"
        top = "document.querySelector('#below').getBoundingClientRect().top + scrollY"
        places = {page.evaluate(top)}
        box = page.locator("svg[role=application]").last.bounding_box()
        for i in range(8):
            page.mouse.move(box["x"] + 40 + 15 * i, box["y"] + 70 + 15 * i)
            places.add(page.evaluate(top))
        page.get_by_role("slider", name="Temperature").focus()
        for _ in range(12):
            page.keyboard.press("ArrowRight")
            places.add(page.evaluate(top))
        assert len(places) == 1


@pytest.mark.browser
def test_an_answer_takes_a_frame(chromium: Any, tmp_path: Path, weights: Path) -> None:
    lab = MaskLaboratory(length=16, text=TEXT + TEXT, vectors="model")
    with page_with(chromium, tmp_path, lab, file=weights) as page:
        values = [0.4, 0.9, 0.4, 0.8, 0.3, 0.7]
        times = [milliseconds(page, "power", value) for value in values]
        assert min(times) < 100  # about a frame where nothing else runs; the rest is other work
