"""The book's benchmark page: its tables are those of the recorded results, and no other."""

import importlib.util
import json
import statistics
from pathlib import Path

import pytest

from gptedu.parameters import count_parameters

BOOK = Path(__file__).parents[1] / "book"


def load_tool(name: str):
    spec = importlib.util.spec_from_file_location(name, BOOK / "_tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


recipe = load_tool("recipe")
RESULTS = recipe.results()


def words_of(kind: str, name: str) -> tuple[str, dict]:
    """The preset and the changed words, as the tool has them now."""
    if kind == "headline":
        *_, preset, words = recipe.HEADLINES[name]
        return preset, {"compile": True} | words
    return "shakespeare-mini", {"steps": recipe.ABLATION_STEPS} | recipe.ABLATIONS[name]


def test_each_table_of_the_page_is_made_from_the_results():
    for name, content in recipe.tables(RESULTS).items():
        assert (BOOK / "figures" / name).read_text("utf-8") == content, "run: recipe.py table"
        assert f"figures/{name}" in (BOOK / "benchmarks.md").read_text("utf-8")


@pytest.mark.parametrize("one", RESULTS, ids=lambda one: f"{one['name']}-{one['seed']}")
def test_a_result_is_that_of_the_run_it_names(one):
    preset, words = words_of(one["kind"], one["name"])
    assert (one["preset"], one["words"]) == (preset, words)
    config, run = recipe.configs(preset, words)
    assert one["parameters"] == count_parameters(config).total
    assert one["tokens"] == one["steps"] * run.batch_size * config.context_length
    assert 1.3 < one["validation_loss"] < 4.2
    assert one["seconds"] > 0
    assert "threads" in one["machine"]


def test_every_variation_has_every_seed():
    for name in recipe.ABLATIONS:
        seeds = {one["seed"] for one in RESULTS if (one["kind"], one["name"]) == ("ablation", name)}
        assert seeds == set(recipe.ABLATION_SEEDS), name


HEADLINES = [one for one in RESULTS if one["kind"] == "headline"]


@pytest.mark.parametrize("one", HEADLINES, ids=lambda one: f"{one['name']}-{one['seed']}")
def test_a_headline_has_the_curve_that_leads_to_its_loss(one):
    steps, seconds, losses = zip(*one["curve"], strict=True)
    assert (steps[-1], seconds[-1], losses[-1]) == (
        one["steps"], one["seconds"], one["validation_loss"],
    )  # fmt: skip
    assert len(steps) >= 12
    assert list(steps) == sorted(steps)
    assert list(seconds) == sorted(seconds)
    assert losses[0] == pytest.approx(4.174, abs=0.001)  # ln 65: a head of zeros


def test_the_figure_shows_every_goal_and_is_on_the_page():
    found = recipe.curves(RESULTS)
    ran = {one["name"] for one in HEADLINES}
    assert found["minutes"].keys() == found["losses"].keys() == ran
    assert "figures/recipe-curve.svg" in (BOOK / "benchmarks.md").read_text("utf-8")
    assert (BOOK / "figures" / "recipe-curve.svg").read_text("utf-8").startswith("<?xml")


def test_the_figure_takes_the_run_of_median_loss():
    one = {"kind": "headline", "name": "two-minutes"}
    made = [
        one | {"validation_loss": loss, "curve": [[0, 0.0, 4.17], [9, 60.0, loss]]}
        for loss in (1.6, 1.4, 1.5)
    ]
    assert recipe.curves(made) == {
        "minutes": {"two-minutes": [1.0]},
        "losses": {"two-minutes": [1.5]},
    }


def test_variations_have_equal_tokens():
    tokens = {one["tokens"] for one in RESULTS if one["kind"] == "ablation"}
    assert len(tokens) == 1


def test_the_table_shows_medians():
    one = {"kind": "ablation", "parameters": 1, "steps": 1, "date": "2000-01-01", "machine": "m"}
    losses = {"the recipe": (1.5, 1.7, 1.6), "GELU": (1.9, 1.8, 2.0)}
    made = [
        one | {"name": name, "validation_loss": loss}
        for name, values in losses.items()
        for loss in values
    ]
    table = recipe.tables(made)["recipe-ablation.md"]
    assert "| the recipe | 1.600 | +0.000 | 0.200 | 3 |" in table
    assert "| GELU | 1.900 | +0.300 | 0.200 | 3 |" in table
    assert statistics.median(losses["GELU"]) == 1.9
    assert "Measured on 2000-01-01: m." in table


def test_a_run_that_is_there_is_not_done_again(tmp_path, monkeypatch, capsys):
    done = [{"kind": "ablation", "name": "GELU", "preset": "tiny", "words": {}, "seed": 3}]
    monkeypatch.setattr(recipe, "RESULTS", tmp_path / "recipe.json")
    recipe.RESULTS.write_text(json.dumps(done))
    recipe.run("ablation", "GELU", "tiny", {}, 3)
    assert "is there" in capsys.readouterr().err
