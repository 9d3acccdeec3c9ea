"""The parameter calculator: its arithmetic against `count_parameters` and `gptedu.cost`.

Every preset and many random configs, to the unit; then in Chromium, by mouse and by keys.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gptedu import cost
from gptedu.config import CHOICES, PRESETS, GPTConfig
from gptedu.parameters import count_parameters
from gptedu.widgets import ParameterCalculator
from gptedu.widgets.parameters import ConfigWidget, loose_words
from tests.widget_page import bare_page, findings, milliseconds, page_with, restored

RUN = {"batch": 8, "optimizer": "adamw", "kernel": "explicit", "bytes": 2}


def random_words(random: random.Random) -> dict[str, Any]:
    """Words of some model, often an impossible one."""
    pick = random.choice
    return {
        "vocab_size": random.randint(1, 200_000),
        "context_length": random.randint(1, 140_000),
        "n_layer": random.randint(1, 130),
        "n_head": random.randint(1, 16),
        "n_kv_head": pick([None, 1, 2, 4]),
        "head_dim": pick([None, None, 1, 64, 128]),
        "d_model": 12 * random.randint(1, 800),
        "d_ff": pick([None, random.randint(1, 50_000)]),
        "dropout": pick([0.0, 0.1]),
        "bias": pick([True, False]),
        "qkv_bias": pick([None, True, False]),
        "norm_bias": pick([None, True, False]),
        "tie_embeddings": pick([True, False]),
        "qk_norm": pick([True, False]),
        **{w: pick(CHOICES[w]) for w in ("position", "norm", "norm_position", "mlp")},
    }


def expected(config: GPTConfig, run: dict[str, Any]) -> dict[str, Any]:
    """What Python says, in the names of the page."""
    ledger, work = count_parameters(config), cost.flops_per_token(config)
    held = cost.memory(config, run["batch"], optimizer=run["optimizer"], kernel=run["kernel"])
    cache = cost.kv_cache_bytes(config, number_bytes=run["bytes"])
    return {
        "total": ledger.total,
        "work": {
            "projections": work.projections,
            "scores": work.scores,
            "mixing": work.mixing,
            "MLP": work.mlp,
            "head": work.head,
        },
        "forward": work.forward,
        "training": work.training,
        "six": cost.rule_of_six(config),
        "palm": cost.palm_flops(config),
        "kaplan": cost.kaplan_flops(config),
        "held": {
            "weights": held.weights,
            "gradients": held.gradients,
            "optimizer": held.optimizer,
            "activations": sum(held.activations.values()),
        },
        "peak": held.total,
        "cache": cache,
        "half": cache // 2,
        "serving": run["bytes"] * ledger.total,
        "generating": run["bytes"] * ledger.total + cache,
        "rule": 12 * config.n_layer * config.d_model**2 + config.vocab_size * config.d_model,
    }


COSTS = """([words, run]) => {
  const plain = (x) => JSON.parse(JSON.stringify(x, (_, v) => typeof v === "bigint" ? `${v}n` : v));
  return plain(GptEdu.parameters.costs(GptEdu.gptConfig(words), run));
}"""


def whole(found: Any) -> Any:
    """The page's numbers of any size as Python's."""
    if isinstance(found, dict):
        return {name: whole(value) for name, value in found.items()}
    if isinstance(found, list):
        return [whole(value) for value in found]
    return int(found[:-1]) if isinstance(found, str) and found[:-1].isdigit() else found


@pytest.fixture(scope="module")
def arithmetic(chromium: Any) -> Iterator[Any]:
    """A page that has the arithmetic and shows nothing."""
    with bare_page(chromium, "parameters.js") as page:
        yield page


def check_costs(page: Any, config: GPTConfig, words: dict[str, Any], run: dict[str, Any]) -> None:
    found = whole(page.evaluate(COSTS, [words, run]))
    rows = {row["component"]: row for row in found.pop("rows") if row["formula"]}
    ledger = count_parameters(config).rows
    names = [row.component.replace(" (tied to the embedding)", "") for row in ledger]
    assert list(rows) == names
    for name, row in zip(names, ledger, strict=True):
        shown = (rows[name]["formula"], rows[name]["copies"], rows[name]["total"])
        assert shown == (row.formula, row.copies, row.total), name
    assert found == expected(config, run)


@pytest.mark.browser
@pytest.mark.parametrize("name", PRESETS)
def test_presets_cost_what_python_says(arithmetic: Any, name: str) -> None:
    check_costs(arithmetic, PRESETS[name], loose_words(PRESETS[name]), RUN)


@pytest.mark.browser
def test_random_configs_cost_what_python_says_or_are_refused_in_its_words(arithmetic: Any) -> None:
    dice = random.Random(7)
    fine, refused = 0, {}
    for _ in range(300):
        words = random_words(dice)
        run = {
            "batch": dice.choice([1, 8, 1024]),
            "optimizer": dice.choice(["adamw", "muon"]),
            "kernel": dice.choice(["explicit", "fused"]),
            "bytes": dice.choice([1, 2, 4]),
        }
        try:
            config = GPTConfig(**words)
        except ValueError as error:
            refused[str(error)] = words
        else:
            check_costs(arithmetic, config, words, run)
            fine += 1
    assert fine > 50
    refuse = "(w) => { try { GptEdu.gptConfig(w) } catch (error) { return error.message } }"
    for reason, words in refused.items():
        assert arithmetic.evaluate(refuse, words) == reason
    assert {reason[:7] for reason in refused} == {"d_model", "n_kv_he", "rotary "}


# Python -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_words_that_follow_are_left_open_and_mean_the_same(name: str) -> None:
    words, config = loose_words(PRESETS[name]), PRESETS[name]
    again = GPTConfig(**words).to_dict()
    assert {w: again[w] for w in ConfigWidget.WORDS} == {
        w: getattr(config, w) for w in ConfigWidget.WORDS
    }
    assert words["n_kv_head"] is None or config.n_kv_head != config.n_head


def test_the_table_without_javascript_is_the_ledger() -> None:
    table = ParameterCalculator(preset="gpt2").fallback()
    for row in count_parameters(PRESETS["gpt2"]).rows:
        assert f"{row.total:,}" in table
    assert "124,439,808" in table
    assert f"{cost.flops_per_token(PRESETS['gpt2']).forward:,}" in table
    impossible = ParameterCalculator(preset="gpt2", n_head=7).fallback()
    assert "cannot be cut into n_head=7 equal heads" in impossible


def test_own_config_and_unknown_preset() -> None:
    own = ParameterCalculator(GPTConfig(n_layer=3, d_model=48, n_head=3))
    assert own.preset == "own"
    assert own.config() == GPTConfig(n_layer=3, d_model=48, n_head=3)
    assert ParameterCalculator(preset="gpt2", n_layer=24).config().n_layer == 24
    with pytest.raises(ValueError, match="no model preset is called 'gpt5'"):
        ParameterCalculator(preset="gpt5")


# The page -----------------------------------------------------------------------------------------


def status(page: Any) -> str:
    return page.locator(".gptedu-status").inner_text()


def total_shown(page: Any) -> str:
    return page.locator(".gptedu-ledger .gptedu-sum td").nth(1).inner_text()


@pytest.mark.browser
def test_a_reader_moves_everything_by_mouse_and_keys(chromium: Any, tmp_path: Path) -> None:
    with page_with(chromium, tmp_path, ParameterCalculator(preset="gpt2")) as page:
        assert status(page).startswith("gpt2 has 124,439,808 parameters: 31.6 % in embeddings")
        words = loose_words(PRESETS["gpt2"])
        layers = page.get_by_role("slider", name="L n_layer", exact=True)
        layers.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("document.body.innerText.includes('n_layer = 13')")
        config = GPTConfig(**words | {"n_layer": 13})
        assert total_shown(page) == f"{count_parameters(config).total:,}"
        page.keyboard.press("End")
        page.wait_for_function("document.body.innerText.includes('n_layer = 128')")

        box = layers.bounding_box()  # the mouse, to the left end
        page.mouse.click(box["x"] + 1, box["y"] + box["height"] / 2)
        page.wait_for_function("document.body.innerText.includes('n_layer = 1 ')")
        config = GPTConfig(**words | {"n_layer": 1})
        assert total_shown(page) == f"{count_parameters(config).total:,}"

        field = page.get_by_role("spinbutton", name="V vocab_size, any number")
        field.fill("12345")
        config = GPTConfig(**words | {"n_layer": 1, "vocab_size": 12345})
        page.wait_for_function(
            "(n) => document.querySelector('.gptedu-sum').innerText.includes(n)",
            arg=f"{count_parameters(config).total:,}",
        )
        again = restored(page, ParameterCalculator)
        assert (again.preset, again.config()) == ("gpt2", config)

        page.get_by_role("button", name="Back to this preset").click()
        page.wait_for_function("document.body.innerText.includes('gpt2 has 124,439,808')")
        page.get_by_label("Model", exact=True).select_option("llama3-8b")
        page.wait_for_function("document.body.innerText.includes('llama3-8b has 8,030,261,248')")
        page.get_by_label("tie_embeddings").check()
        config = GPTConfig.preset("llama3-8b", tie_embeddings=True)
        assert total_shown(page) == f"{count_parameters(config).total:,}"
        assert "llama3-8b with tie_embeddings = on has" in status(page)
        assert page.faults == []


@pytest.mark.browser
def test_every_control_to_its_ends_and_somewhere(chromium: Any, tmp_path: Path) -> None:
    """Wherever a reader goes there is a picture and a sentence, and never an error."""
    dice = random.Random(3)
    with page_with(chromium, tmp_path, ParameterCalculator(preset="small")) as page:
        page.get_by_text("More words, and how it runs").click()
        sliders = page.get_by_role("slider")
        assert sliders.count() == 10
        for i in range(sliders.count()):
            sliders.nth(i).focus()
            for key in ("Home", "End", *["ArrowLeft"] * dice.randint(1, 6), "PageDown"):
                page.keyboard.press(key)
            sliders.nth(i).press("ArrowRight")
            assert page.locator("[data-gptedu-live]").count() == 1
        for box in page.get_by_role("combobox").all():
            for i in range(
                0, box.locator("option").count(), 1 + box.locator("option").count() // 5
            ):
                box.select_option(index=i)
                assert page.locator("[data-gptedu-live]").count() == 1
        for box in page.get_by_role("checkbox").all():
            box.click()
        assert page.locator("[data-gptedu-error]").count() == 0
        assert page.faults == []


@pytest.mark.browser
def test_an_impossible_config_is_said_in_words(chromium: Any, tmp_path: Path) -> None:
    with page_with(chromium, tmp_path, ParameterCalculator(preset="gpt2")) as page:
        top = page.locator("#below").bounding_box()["y"]
        page.get_by_role("spinbutton", name="H n_head, any number").fill("7")
        page.wait_for_function("document.body.innerText.includes('There is no such model')")
        with pytest.raises(ValueError, match="cannot be cut") as error:
            GPTConfig.preset("gpt2", n_head=7, head_dim=None)
        wanted = f"There is no such model: {error.value}. 7 heads fit a width of 763 or 770."
        assert status(page) == wanted
        assert total_shown(page) == "–"
        assert "12 × (C·H·D + H·D)" in page.locator(".gptedu-ledger").first.inner_text()
        assert page.locator("[data-gptedu-error]").count() == 0
        assert page.locator("#below").bounding_box()["y"] == top  # nothing moved
        page.get_by_role("spinbutton", name="K n_kv_head, any number").fill("5")
        page.get_by_role("spinbutton", name="H n_head, any number").fill("12")
        page.wait_for_function("document.body.innerText.includes('These divide 12: 1, 2, 3, 4')")
        page.get_by_role("spinbutton", name="K n_kv_head, any number").fill("")
        page.wait_for_function("document.body.innerText.includes('gpt2 has 124,439,808')")
        for hostile in ("-3", "0", "1e99", "999999999999999999999"):
            page.get_by_role("spinbutton", name="C d_model, any number").fill(hostile)
        page.wait_for_function("document.body.innerText.includes('d_model')")
        assert page.locator("[data-gptedu-error]").count() == 0
        assert page.faults == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [1100, 360])
def test_looks_saves_and_is_quick(chromium: Any, tmp_path: Path, width: int) -> None:
    widget = ParameterCalculator(preset="llama3-8b")
    size = {"width": width, "height": 800}
    with page_with(chromium, tmp_path, widget, viewport=size, accept_downloads=True) as page:
        assert min(milliseconds(page, "n_layer", n) for n in (3, 50, 90, 4, 51, 91)) < 250
        assert page.locator(".gptedu-picture rect").count() > 15
        for kind in ("SVG", "PNG"):
            with page.expect_download() as saving:
                page.get_by_role("button", name=f"Save {kind}").click()
            saving.value.save_as(tmp_path / kind)
        drawing = ElementTree.parse(tmp_path / "SVG").getroot()
        assert "Forward pass, one token" in [node.text for node in drawing.iter()]
        assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
        assert findings(page) == []
        assert page.faults == []
