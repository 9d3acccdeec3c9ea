"""What the recipe reaches, and what each of its ingredients gives. The figures of book/benchmarks.

    python book/_tools/recipe.py headline NAME --seed 1      one run, compilation included
    python book/_tools/recipe.py ablation [NAME ...]         short runs, one word changed in each
    python book/_tools/recipe.py table                       the page's tables and its figure

Results are added to book/recipe.json; a run that is there is not done again. Losses are those of
the last weights, on the whole validation split of Tiny Shakespeare, in windows side by side.
Seconds are those of the updates: compilation counts, evaluations do not.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

from gptedu import CharTokenizer, GPTConfig, TrainConfig, corpus, plots, train
from gptedu.notebook import STYLE
from gptedu.recording import machine
from gptedu.seeds import untrained

BOOK = Path(__file__).parents[1]
RESULTS = BOOK / "recipe.json"

# About as many weights as the preset.
QUICK = {"mlp": "swiglu", "d_ff": 344, "n_head": 2}
# Wider than the preset, and with dropout: it reads the text six times.
LONG = {"mlp": "swiglu", "d_ff": 688, "d_model": 256, "n_head": 4, "dropout": 0.1}
# name -> (goal in nats, minutes, preset, words that differ from the preset)
HEADLINES: dict[str, tuple[float, int, str, dict[str, Any]]] = {
    "two-minutes": (1.4937, 2, "shakespeare-mini", QUICK | {"steps": 1250}),
    "four-minutes": (1.4697, 4, "shakespeare-mini", QUICK | {"steps": 2200}),
    "thirty-minutes": (1.41, 30, "shakespeare", LONG | {"steps": 3000}),
}

MINUTES = (1, 2, 4, 8, 15, 30)  # marked in the figure

# label -> words that differ from the preset shakespeare-mini, ABLATION_STEPS steps, eager
ABLATION_STEPS = 256
ABLATIONS: dict[str, dict[str, Any]] = {
    "the recipe": {},
    "AdamW, rate 0.003": {"optimizer": "adamw"},
    "AdamW, rate 0.01": {"optimizer": "adamw", "lr": 1e-2},
    "Muon at half the rate": {"muon_lr": 0.02},
    "learned positions": {"position": "learned"},
    "LayerNorm": {"norm": "layernorm"},
    "GELU": {"mlp": "gelu"},
    "SwiGLU, as many weights": {"mlp": "swiglu", "d_ff": 341},
    "no norm on queries and keys": {"qk_norm": False},
    "GPT-2's start, not zeros": {"init": "gpt2"},
    "tied head": {"tie_embeddings": True},
    "a quarter of the steps, 64 windows": {"batch_size": 64, "steps": ABLATION_STEPS // 4},
    "constant rate": {"schedule": "constant"},
    "dropout 0.1": {"dropout": 0.1},
}
ABLATION_SEEDS = (1, 2)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("headline", "ablation", "table"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.what == "table":
        write_tables()
    elif options.what == "headline":
        for name in options.names or HEADLINES:
            *_, preset, words = HEADLINES[name]
            torch.compiler.reset()  # nothing that was compiled before, in memory or on disk
            with tempfile.TemporaryDirectory() as empty:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty
                run("headline", name, preset, {"compile": True} | words, options.seed)
    else:
        for seed in ABLATION_SEEDS:
            for name in options.names or ABLATIONS:
                words = {"steps": ABLATION_STEPS} | ABLATIONS[name]
                run("ablation", name, "shakespeare-mini", words, seed)


def results() -> list[dict[str, Any]]:
    """All that were recorded."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []


def configs(preset: str, words: dict[str, Any]) -> tuple[GPTConfig, TrainConfig]:
    """A preset's model and its training, with these words of either changed."""
    shape = {word: words[word] for word in words if word in GPTConfig.__dataclass_fields__}
    rest = {word: words[word] for word in words if word not in shape}
    return GPTConfig.preset(preset, **shape), TrainConfig.preset(preset, **rest)


def run(kind: str, name: str, preset: str, words: dict[str, Any], seed: int) -> None:
    """Train once and add the result."""
    key = {"kind": kind, "name": name, "preset": preset, "words": words, "seed": seed}
    if any(key.items() <= done.items() for done in results()):
        print(f"{name}, seed {seed}: is there", file=sys.stderr)
        return
    text = corpus.tiny_shakespeare()
    tokenizer = CharTokenizer(text)
    ids = torch.tensor(tokenizer.encode(text))
    looks = 12 if kind == "headline" else 1
    shape, config = configs(preset, {"seed": seed} | words)
    config = replace(config, eval_every=config.steps // looks)
    model = untrained(shape, seed)
    records = list(train(model, ids, config))
    looked, last = [record for record in records if record.val_loss], records[-1]
    result = key | {
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": config.steps,
        "tokens": last.tokens,
        "validation_loss": round(last.val_loss or 0.0, 4),
        "training_loss": round(statistics.mean(one.loss for one in records[-100:]), 4),
        "seconds": round(last.seconds, 1),
        "curve": [[one.step, round(one.seconds, 1), round(one.val_loss, 4)] for one in looked],
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    lines = ",\n".join(json.dumps(one) for one in [*results(), result])
    RESULTS.write_text(f"[\n{lines}\n]\n", "utf-8")
    print(result, flush=True)


def by_name(done: list[dict[str, Any]], kind: str) -> dict[str, list[dict[str, Any]]]:
    """The runs of one kind, those of a name together, the lowest loss first."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in sorted(done, key=lambda one: one["validation_loss"]):
        if one["kind"] == kind:
            groups[one["name"]].append(one)
    return groups


def losses(runs: list[dict[str, Any]]) -> list[float]:
    """One of each run."""
    return [one["validation_loss"] for one in runs]


def tables(done: list[dict[str, Any]]) -> dict[str, str]:
    """Markdown by file name: medians over the seeds."""
    headlines, ablations = by_name(done, "headline"), by_name(done, "ablation")
    rows = []
    for name, (goal, minutes, *_) in HEADLINES.items():
        if runs := headlines[name]:
            seconds = statistics.median(one["seconds"] for one in runs)
            found = losses(runs)
            each = ", ".join(f"{loss:.4f}" for loss in found)
            rows.append(
                f"| {goal:.4f} in {minutes} min | {runs[0]['parameters']:,} | {runs[0]['steps']:,} "
                f"| {statistics.median(found):.4f} | {each} | {seconds:,.0f} s |"
            )
    headline = [
        "| goal | weights | steps | median loss | each seed | median time |",
        "|---|---:|---:|---:|---|---:|",
        *rows,
    ]
    base = losses(ablations["the recipe"])
    rows = []
    for name in ABLATIONS:
        if found := losses(ablations[name]):
            median, spread = statistics.median(found), found[-1] - found[0]
            more = median - statistics.median(base)
            rows.append(f"| {name} | {median:.3f} | {more:+.3f} | {spread:.3f} | {len(found)} |")
    ablation = [
        "| changed | median loss | against the recipe | between seeds | seeds |",
        "|---|---:|---:|---:|---:|",
        *rows,
    ]
    return {
        "recipe-headline.md": "\n".join([*headline, "", measured(done, "headline"), ""]),
        "recipe-ablation.md": "\n".join([*ablation, "", measured(done, "ablation"), ""]),
    }


def measured(done: list[dict[str, Any]], kind: str) -> str:
    """When, and on which machines."""
    places = {f"{one['date']}: {one['machine']}" for one in done if one["kind"] == kind}
    return f"Measured on {'; '.join(sorted(places))}."


def curves(done: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Of each headline the run of median loss: minutes and losses, from where they are near."""
    found: dict[str, dict[str, list[float]]] = {"minutes": {}, "losses": {}}
    headlines = by_name(done, "headline")
    for name in HEADLINES:
        if runs := headlines[name]:
            curve = [point for point in runs[(len(runs) - 1) // 2]["curve"] if point[2] < 1.8]
            found["minutes"][name] = [seconds / 60 for _, seconds, _ in curve]
            found["losses"][name] = [loss for *_, loss in curve]
    return found


def draw_curves(done: list[dict[str, Any]], file: Path) -> None:
    """The figure of the page, without a date, so that it changes only when a result does."""
    plt.style.use(STYLE)
    found = curves(done)
    plots.curve(
        found["minutes"],
        found["losses"],
        levels={f"goal {goal:.4f}": goal for goal, *_ in HEADLINES.values()},
        points=True,
        xscale="log",
        xlabel="minutes of training, compilation included",
        ylabel="validation loss (nats)",
    )
    plt.minorticks_off()
    plt.xticks(MINUTES, [*map(str, MINUTES)])
    plt.rcParams["svg.hashsalt"] = "recipe"
    plt.savefig(file, bbox_inches="tight", metadata={"Date": None})


def write_tables() -> None:
    """Put them where the page includes them."""
    done = results()
    for name, content in tables(done).items():
        (BOOK / "figures" / name).write_text(content, "utf-8")
    draw_curves(done, BOOK / "figures" / "recipe-curve.svg")


if __name__ == "__main__":
    main()
