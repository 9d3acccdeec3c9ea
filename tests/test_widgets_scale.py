"""The cost explorer: its numbers are those of `gptedu.cost` and `gptedu.parameters`, for every
preset and for runs of all kinds; then in Chromium, by mouse and by keys.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest

from gptedu.config import PRESETS, GPTConfig
from gptedu.cost import flops_per_token, memory
from gptedu.parameters import count_parameters
from gptedu.widgets import CostExplorer
from gptedu.widgets.scale import constants
from tests.widget_page import bare_page, findings, milliseconds, page_with, restored


@pytest.fixture(scope="module")
def arithmetic(chromium: Any) -> Iterator[Any]:
    """A page that has the arithmetic and shows nothing."""
    with bare_page(chromium, "scale.js") as page:
        yield page


def check(page: Any, config: GPTConfig, run: dict[str, Any]) -> None:
    found = page.evaluate("([m, run]) => GptEdu.scale.costs(m, run)", [constants(config), run])
    work = flops_per_token(config, run["T"])
    held = memory(config, run["batch"], run["T"], kernel=run["kernel"])
    share = run["devices"] if run["sharded"] else 1
    assert found["work"] == {
        "projections": work.projections,
        "scores": work.scores,
        "mixing": work.mixing,
        "MLP": work.mlp,
        "head": work.head,
    }
    assert found["forward"] == work.forward
    activations = sum(held.activations.values())
    of_the_model = {
        "weights": held.weights / share,
        "gradients": held.gradients / share,
        "optimizer": held.optimizer / share,
    }
    assert found["held"] == pytest.approx(of_the_model | {"activations": activations}, rel=1e-12)
    assert found["peak"] == pytest.approx(sum(of_the_model.values()) + activations, rel=1e-12)
    tokens = 20 * count_parameters(config).total
    seconds = tokens * work.training / (run["devices"] * 4e14)
    assert found["seconds"] == pytest.approx(seconds, rel=1e-12)


@pytest.mark.browser
def test_every_preset_costs_what_python_says(arithmetic: Any) -> None:
    dice = Random(5)
    for config in PRESETS.values():
        for _ in range(4):
            run = {
                "T": dice.randint(1, 200_000),
                "batch": dice.randint(1, 64),
                "devices": dice.choice([1, 2, 7, 64, 1024]),
                "sharded": dice.random() < 0.5,
                "kernel": dice.choice(["fused", "explicit"]),
            }
            check(arithmetic, config, run)


@pytest.mark.browser
@pytest.mark.parametrize(
    "words",
    [
        {"dropout": 0.1, "mlp": "swiglu", "n_kv_head": 2},
        {"qk_norm": True, "norm_position": "post", "head_dim": 48},
    ],
)
def test_own_configs_too(arithmetic: Any, words: dict[str, Any]) -> None:
    config = replace(PRESETS["small"], **words)
    run = {"T": 300, "batch": 3, "devices": 4, "sharded": True, "kernel": "explicit"}
    check(arithmetic, config, run)
    shown = CostExplorer(config)
    assert shown.preset == "own"
    assert shown.models["own"] == constants(config)


def test_table_without_javascript_and_unknown_preset() -> None:
    widget = CostExplorer(preset="gpt2", context=512, batch_size=4, devices=2, sharded=True)
    held = memory(PRESETS["gpt2"], 4, 512, kernel="fused")
    table = widget.fallback()
    assert f"{(held.total - sum(held.activations.values())) / 2:,.0f}" in table
    assert f"{sum(held.activations.values()):,}" in table
    widget.kernel = "explicit"
    explicit = memory(PRESETS["gpt2"], 4, 512).activations
    assert f"{sum(explicit.values()):,}" in widget.fallback()
    with pytest.raises(ValueError, match="no model preset is called 'gpt5'; known: tiny"):
        CostExplorer(preset="gpt5")
    with pytest.raises(ValueError, match="no model preset is called 'own'"):
        CostExplorer(preset="own")


def status(page: Any) -> str:
    return page.locator(".gptedu-status").inner_text()


@pytest.mark.browser
def test_a_reader_moves_everything_by_mouse_and_keys(chromium: Any, tmp_path: Path) -> None:
    with page_with(chromium, tmp_path, CostExplorer(preset="gpt2")) as page:
        assert status(page).startswith("At 1,024 tokens, scores and mixing are 13.3 % of gpt2’s")
        assert "Each of 8 devices holds" in status(page)
        assert "a whole copy, and" in status(page)
        page.get_by_label("Sharded").check()
        own = 16 * count_parameters(PRESETS["gpt2"]).total / 8e6
        assert f"{own:.0f} MB of the model’s numbers, its share, and" in status(page)

        devices = page.get_by_role("slider", name="Devices")
        devices.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("document.body.innerText.includes('Each of 16 devices')")
        page.keyboard.press("Home")
        page.wait_for_function("document.body.innerText.includes('The one device holds')")

        context = page.get_by_role("slider", name="Context")
        box = context.bounding_box()  # the mouse, to the right end
        page.mouse.click(box["x"] + box["width"] - 1, box["y"] + box["height"] / 2)
        page.wait_for_function("document.body.innerText.includes('At 131,072 tokens')")
        assert "gpt2 itself was made for 1,024" in status(page)
        page.get_by_label("Model", exact=True).select_option("llama3-70b")
        page.wait_for_function("document.body.innerText.includes('llama3-70b’s work')")
        page.get_by_label("Attention").select_option("explicit")
        again = restored(page, CostExplorer)
        seen = (again.preset, again.context, again.devices, again.sharded, again.kernel)
        assert seen == ("llama3-70b", 131072, 1, True, "explicit")
        assert page.faults == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [1100, 360])
def test_looks_saves_and_is_quick(chromium: Any, tmp_path: Path, width: int) -> None:
    widget = CostExplorer(preset="llama3-70b", context=8192, devices=64, sharded=True)
    size = {"width": width, "height": 800}
    with page_with(chromium, tmp_path, widget, viewport=size, accept_downloads=True) as page:
        top = page.locator("#below").bounding_box()["y"]
        assert (
            min(milliseconds(page, "context", n) for n in (0, 4, 6, 1)) < 100
        )  # places in its list
        assert page.locator("#below").bounding_box()["y"] == top  # nothing moved
        with page.expect_download() as saving:
            page.get_by_role("button", name="Save SVG").click()
        saving.value.save_as(tmp_path / "SVG")
        drawing = ElementTree.parse(tmp_path / "SVG").getroot()
        texts = {node.text for node in drawing.iter()}
        assert {"Training, bytes on each device", "activations", "MLP"} <= texts
        assert findings(page) == []
        assert page.faults == []
