"""The position explorer: its tables and products against `gptedu.embedding`, `rope` and `seeds`.

Then in Chromium, by mouse and by keys: the curve, the maps and the sentence say the same.
"""

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from gptedu.config import GPTConfig
from gptedu.embedding import sinusoids
from gptedu.rope import Rotary, rotation_angles
from gptedu.seeds import Random, untrained
from gptedu.widgets import PositionExplorer, host
from tests.widget_page import bare_page, findings, milliseconds, page_with, restored

CASES = [
    dict(zip(("d", "positions", "base"), case, strict=True))
    for case in itertools.product((2, 8, 64), (8, 96), (10.0, 10000.0))
]


@pytest.fixture(scope="module")
def plain(chromium: Any) -> Iterator[Any]:
    """A page that has the arithmetic and shows nothing."""
    with bare_page(chromium, "embedding.js") as page:
        yield page


ROWS = """(state) => {
  const { rowsOf, products, spread } = GptEdu.positions, rows = rowsOf(state), all = products(rows);
  return { queries: [...rows.queries], keys: [...rows.keys], all: [...all], ...spread(all, rows.T),
    T: rows.T, D: rows.D };
}"""


def rows(page: Any, **state: Any) -> dict[str, Any]:
    state = {"same": True, "seed": 1, "own": [], "base": 10000.0, **state}
    found = page.evaluate(ROWS, state)
    T, D = found["T"], found["D"]
    for name, columns in (("queries", D), ("keys", D), ("all", T)):
        found[name] = torch.tensor(found[name], dtype=torch.float64).view(T, columns)
    return found


def same(found: torch.Tensor, wanted: torch.Tensor, atol: float = 2e-5) -> None:
    torch.testing.assert_close(found.float(), wanted.float(), atol=atol, rtol=1e-5)


def spread_of(products: torch.Tensor) -> float:
    """The largest difference along a diagonal, the plain way."""
    T = len(products)
    lines = [products.diagonal(i) for i in range(1 - T, T)]
    return max(float(line.max() - line.min()) for line in lines)


@pytest.mark.browser
@pytest.mark.parametrize("case", CASES)
def test_sinusoids_are_those_of_the_package(plain: Any, case: dict[str, Any]) -> None:
    found = rows(plain, kind="sinusoidal", **case)
    angles = rotation_angles(torch.arange(case["positions"]), case["d"], case["base"]).double()
    wanted = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
    same(found["queries"], wanted)
    if case["base"] == 10000.0:
        same(found["queries"], sinusoids(case["positions"], case["d"]))
    same(found["all"], wanted @ wanted.T, atol=2e-4)
    assert found["atSame"] < 1e-9  # of the distance only


@pytest.mark.browser
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("alike", [True, False])
def test_rotary_rows_are_those_of_the_package(
    plain: Any, case: dict[str, Any], alike: bool
) -> None:
    found = rows(plain, kind="rope", same=alike, seed=3, **case)
    D, T = case["d"], case["positions"]
    drawn = torch.from_numpy(Random(3).normal(2 * D)).float()
    q, k = drawn[:D], drawn[:D] if alike else drawn[D:]
    rotary = Rotary(T, D, case["base"])
    queries, keys = (rotary(x.expand(1, 1, T, D))[0, 0] for x in (q, k))
    same(found["queries"], queries, atol=1e-4)
    same(found["keys"], keys, atol=1e-4)
    same(found["all"], queries @ keys.T, atol=2e-3)
    assert found["atSame"] < 1e-9
    if not alike and D > 2:
        assert abs(found["all"][0, 5] - found["all"][5, 0]) > 1e-3  # the side matters too


@pytest.mark.browser
def test_the_learned_table_is_that_of_an_untrained_model(plain: Any) -> None:
    """The same generator and spread; and no law of distance in it."""
    found = rows(plain, kind="learned", d=16, positions=24, seed=5)
    wanted = torch.from_numpy(0.02 * Random(5).normal(24 * 16)).view(24, 16)
    same(found["queries"], wanted, atol=1e-7)
    config = GPTConfig.preset("tiny", d_model=64, n_head=2, context_length=96)
    model = untrained(config).position_embedding
    assert model is not None
    assert math.isclose(float(model.weight.detach().std()), float(wanted.std()), rel_tol=0.1)
    assert math.isclose(found["atSame"], spread_of(found["all"]), rel_tol=1e-9)
    assert found["atSame"] > 0.3 * found["whole"]


@pytest.mark.browser
def test_an_own_table_is_used_as_it_is(plain: Any) -> None:
    table = torch.randn(10, 7)
    explorer = PositionExplorer(learned=table)
    assert explorer.kind == "own"
    found = rows(plain, kind="own", d=4, positions=5, own=explorer.own)
    same(found["queries"], table, atol=6e-5)
    same(found["all"], table @ table.T, atol=2e-3)
    assert math.isclose(found["atSame"], spread_of(found["all"]), rel_tol=1e-9)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="d=7 must be even"):
        PositionExplorer(d=7)
    with pytest.raises(ValueError, match=r"shape \(4,\)"):
        PositionExplorer(learned=torch.zeros(4))
    assert "16.00" in PositionExplorer().fallback()  # D / 2 at distance 0
    json.loads(host.to_json(PositionExplorer().book_state()))


# The page -----------------------------------------------------------------------------------------


def status(page: Any) -> str:
    return page.locator(".gptedu-status").inner_text()


@pytest.mark.browser
def test_the_sentence_says_what_python_says(chromium: Any, tmp_path: Path) -> None:
    with page_with(chromium, tmp_path, PositionExplorer(position=9)) as page:
        table = sinusoids(48, 32)
        wanted = (
            f"Sinusoidal: position 9 with 8, distance −1, gives {float(table[9] @ table[8]):.2f}."
        )
        assert status(page).startswith(wanted)
        assert "they depend on the distance only" in status(page)

        page.locator("svg[role=application]").focus()  # arrows walk over all the products
        for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)  # the first only enters
        assert f"position 2 with 1, distance −1, gives {float(table[2] @ table[1]):.2f}" in status(
            page
        )
        page.keyboard.press("End")
        value = f"{float(table[2] @ table[47]):.2f}"
        assert f"position 2 with 47, distance 45, gives {value}" in status(page)
        page.keyboard.press("Escape")
        assert status(page).startswith(wanted)

        position = page.get_by_role("slider", name="Position", exact=True)
        position.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("document.body.innerText.includes('position 10 with 9')")
        page.get_by_role("slider", name="Dimensions D").focus()
        page.keyboard.press("Home")
        page.wait_for_function("document.body.innerText.includes('slowest in 6.')")
        value = f"{math.cos(1):.2f}"
        assert f"gives {value}" in status(page)

        page.get_by_label("Positions", exact=True).select_option("learned, before training")
        page.wait_for_function("document.body.innerText.includes('do not depend on the distance')")
        assert page.get_by_role("slider", name="Base").is_disabled()
        page.get_by_label("Positions", exact=True).select_option("rotary")
        page.get_by_label("query = key").uncheck()
        page.wait_for_function("document.body.innerText.includes('and on which comes first')")
        again = restored(page, PositionExplorer)
        assert (again.kind, again.d, again.position, again.same) == ("rope", 2, 10, False)
        assert page.faults == []


@pytest.mark.browser
def test_every_slider_to_its_ends_and_nothing_moves(chromium: Any, tmp_path: Path) -> None:
    widget = PositionExplorer(kind="rope")
    with page_with(chromium, tmp_path, widget, viewport={"width": 760, "height": 900}) as page:
        top = "document.querySelector('#below').getBoundingClientRect().top + scrollY"
        places = [page.evaluate(top)]
        for slider in page.get_by_role("slider").all():
            box = slider.bounding_box()
            for x in (1, box["width"] - 1, box["width"] * 0.4):
                page.mouse.click(box["x"] + x, box["y"] + box["height"] / 2)
            for key in ("Home", "End", "ArrowLeft", "PageDown"):
                slider.press(key)
            page.wait_for_timeout(40)
            assert page.locator("[data-gptedu-live]").count() == 1
            places.append(page.evaluate(top))
        assert max(places) - min(places) < 40
        page.get_by_role("slider", name="Positions T").press("Home")
        page.get_by_role("slider", name="Position", exact=True).press("End")
        page.wait_for_function("document.body.innerText.includes('position 7 with 6')")
        assert page.faults == []


@pytest.mark.browser
def test_an_own_table_in_the_page(chromium: Any, tmp_path: Path) -> None:
    table = torch.randn(12, 6).round(decimals=3)
    with page_with(chromium, tmp_path, PositionExplorer(learned=table, position=4)) as page:
        value = f"{float(table[4] @ table[3]):.2f}".replace("-", "−")
        assert status(page).startswith(
            f"Learned, your own: position 4 with 3, distance −1, gives {value}"
        )
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy as Python").click()
        line = page.locator(".gptedu-note code").inner_text()
        made = eval(line, {"PositionExplorer": PositionExplorer, "table": table})
        assert (made.position, len(made.own)) == (4, 12)
        assert page.faults == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [1100, 360])
def test_looks_saves_and_is_quick(chromium: Any, tmp_path: Path, width: int) -> None:
    size = {"width": width, "height": 800}
    widget = PositionExplorer()
    with page_with(chromium, tmp_path, widget, viewport=size, accept_downloads=True) as page:
        assert min(milliseconds(page, "position", n) for n in (3, 11, 30, 4, 12, 31)) < 150
        assert min(milliseconds(page, "d", n) for n in (2, 5, 8, 3, 6, 9)) < 300
        for kind in ("SVG", "PNG"):
            with page.expect_download() as saving:
                page.get_by_role("button", name=f"Save {kind}").click()
            saving.value.save_as(tmp_path / kind)
        drawing = ElementTree.parse(tmp_path / "SVG").getroot()
        assert "All products" in [node.text for node in drawing.iter()]
        assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
        assert findings(page) == []
        assert page.faults == []
