"""`python -m tests.bench [--quick] [KEY ...]`: prints what it measures, and JSON on the last line.

Each ratio compares two things that were timed in turn in the same run, so that a busy machine slows
both; medians. Above 1 the package, or its cache, is the faster one. `matmul_share` is the part of
the machine's best measured matrix product that a training step reaches, in floating-point
operations a second. `steps_per_second` and `evaluate_split_seconds` are no ratios: they say what
this machine does. `--page FILE` writes the figures as a table for the book.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gptedu.batches import epoch_batch
from gptedu.config import GPTConfig, TrainConfig
from gptedu.cost import flops_per_token
from gptedu.generation import generate
from gptedu.model import GPT
from gptedu.optim import make_optimizers
from gptedu.recording import machine
from gptedu.training import evaluate, update
from tests.bench.reference import PlainGPT, training_step

LEARNING_RATE = 3e-4
PRODUCTS = (  # (m,k) times (k,n): square ones, and the tall ones of a training step
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (8192, 384, 1536),
    (8192, 1536, 384),
)


@dataclass
class Bench:
    """One run: its sizes, and what it measured. Each key is a method."""

    config: GPTConfig = field(default_factory=lambda: GPTConfig.preset("tutorial"))
    batch_size: int = 32
    repeats: int = 3
    new_tokens: int = 256
    more_tokens: int = 500  # for the two paths of our own generation
    split_tokens: int = 111_540  # Tiny Shakespeare's validation split
    presets: tuple[str, ...] = ("small", "medium", "tutorial")
    products: tuple[tuple[int, int, int], ...] = PRODUCTS
    seconds: dict[str, Any] = field(default_factory=dict)

    def train_step_vs_tutorial(self) -> float:
        """Reference over ours, seconds of a training step without dropout."""
        plain, ours = self.training_seconds
        return plain / ours

    def train_step_vs_tutorial_dropout(self) -> float:
        """The same with dropout 0.2."""
        plain, ours = self._training_steps(dropout=0.2)
        return plain / ours

    def generate_256_vs_tutorial(self) -> float:
        """Reading everything again for each token, over the KV cache: seconds of 256 new tokens."""
        config = replace(self.config, dropout=0.0)
        plain, model = PlainGPT(config).eval(), GPT(config).eval()
        start = torch.zeros(1, 1, dtype=torch.long)
        reference, ours = self._in_turn(
            "generation",
            lambda: plain.generate(start, self.new_tokens),
            lambda: list(generate(model, start, self.new_tokens)),
            warm_up=False,  # the first of hundreds of passes does not count
        )
        return reference / ours

    def generate_500_cached_vs_uncached(self) -> float:
        """Our own two paths, at twice the context, so that nothing falls out of the window."""
        config = replace(self.config, dropout=0.0, context_length=2 * self.config.context_length)
        model = GPT(config).eval()
        start = torch.zeros(1, 1, dtype=torch.long)
        list(generate(model, start, 2))
        slow, fast = (
            seconds_of(
                lambda use=use: list(generate(model, start, self.more_tokens, use_cache=use))
            )
            for use in (False, True)
        )
        self.seconds["500 tokens"] = {"uncached": slow, "cached": fast}
        print(f"  {self.more_tokens} tokens: uncached {slow:.2f} s, cached {fast:.2f} s")
        return slow / fast

    def steps_per_second(self) -> dict[str, float]:
        """Training steps of 2,048 tokens (the tutorial: 32 windows), in bf16, without dropout."""
        rates = {}
        for name in self.presets:
            config = GPTConfig.preset(name, dropout=0.0)
            ids = torch.randint(config.vocab_size, (100_000,))
            windows = self.batch_size if name == "tutorial" else 2048 // config.context_length
            recipe = TrainConfig(batch_size=windows, precision="bf16")
            model = GPT(config).train()
            step = partial(our_training_step, model, make_optimizers(model, recipe), ids, recipe)
            step()
            rates[name] = round(
                1 / statistics.median(seconds_of(step) for _ in range(self.repeats)), 2
            )
        return rates

    def evaluate_split_seconds(self) -> float:
        """The loss on a text as long as Tiny Shakespeare's validation split, in bf16."""
        ids = torch.randint(self.config.vocab_size, (self.split_tokens,))
        return seconds_of(lambda: evaluate(GPT(self.config), ids, precision="bf16"))

    def matmul_share(self) -> float:
        """Operations a second of our training step over those of the best product."""
        tokens = self.batch_size * self.config.context_length
        flops = flops_per_token(self.config).training * tokens
        reached = flops / self.training_seconds[1]
        peaks = {str(dtype): self._peak(dtype) for dtype in (torch.bfloat16, torch.float32)}
        print(f"  training step: {reached / 1e9:.0f} GFLOP/s")
        for dtype, peak in peaks.items():
            print(f"  best product in {dtype}: {peak / 1e9:.0f} GFLOP/s")
        return reached / max(peaks.values())

    @cached_property
    def training_seconds(self) -> tuple[float, float]:
        """Reference and ours, without dropout."""
        return self._training_steps(dropout=0.0)

    def _training_steps(self, dropout: float) -> tuple[float, float]:
        config = replace(self.config, dropout=dropout)
        ids = torch.randint(config.vocab_size, (1_000_000,))
        plain, model = PlainGPT(config), GPT(config)
        recipe = TrainConfig(batch_size=self.batch_size, lr=LEARNING_RATE, precision="bf16")
        adamw = torch.optim.AdamW(plain.parameters(), lr=LEARNING_RATE)
        return self._in_turn(
            f"training step, dropout {dropout}",
            partial(training_step, plain, adamw, ids, self.batch_size),
            partial(our_training_step, model.train(), make_optimizers(model, recipe), ids, recipe),
        )

    def _in_turn(
        self,
        name: str,
        plain: Callable[[], object],
        ours: Callable[[], object],
        warm_up: bool = True,
    ) -> tuple[float, float]:
        """Median seconds of both, timed in turn."""
        if warm_up:
            plain()
            ours()
        times = [(seconds_of(plain), seconds_of(ours)) for _ in range(self.repeats)]
        medians = tuple(map(statistics.median, zip(*times, strict=True)))
        self.seconds[name] = {"reference": medians[0], "gptedu": medians[1]}
        print(f"  {name}: reference {medians[0]:.3f} s, gptedu {medians[1]:.3f} s")
        return medians[0], medians[1]

    def _peak(self, dtype: torch.dtype) -> float:
        """The most operations a second of any of the products, each timed for a while."""
        best = 0.0
        for m, k, n in self.products:
            a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
            times = [seconds_of(lambda a=a, b=b: a @ b) for _ in range(5 * self.repeats + 1)]
            best = max(best, 2 * m * k * n / min(times[1:]))
        return best


def our_training_step(
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    ids: torch.Tensor,
    recipe: TrainConfig,
) -> float:
    """What `train` does in a step, the drawing of the batch included."""
    x, y = epoch_batch(ids, recipe.batch_size, model.config.context_length, recipe.seed, step=0)
    loss, _ = update(model, optimizers, x, y, recipe, step=recipe.warmup)
    return loss


def seconds_of(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


KEYS = (
    "train_step_vs_tutorial",
    "train_step_vs_tutorial_dropout",
    "generate_256_vs_tutorial",
    "generate_500_cached_vs_uncached",
    "matmul_share",
    "steps_per_second",
    "evaluate_split_seconds",
)


def run(bench: Bench, keys: list[str]) -> dict[str, Any]:
    """Measure the keys; the result is what the last line says."""
    torch.manual_seed(0)
    result: dict[str, Any] = {}
    for key in keys:
        print(key, flush=True)
        value = getattr(bench, key)()
        result[key] = round(value, 3) if isinstance(value, float) else value
        print(f"  {key} = {result[key]}", flush=True)
    return result | {"seconds": bench.seconds, "machine": machine()}


def table(result: dict[str, Any], date: str) -> str:
    """The figures in Markdown, with machine and date."""
    rows = [(key, result[key]) for key in KEYS if key in result]
    flat = [
        (f"{key}, `{part}`" if part else key, number)
        for key, value in rows
        for part, number in (value.items() if isinstance(value, dict) else [("", value)])
    ]
    lines = [f"| {key.replace('_', ' ')} | {number:.2f} |" for key, number in flat]
    head = ["| what | figure |", "|---|---:|"]
    return "\n".join([*head, *lines, "", f"Measured on {date}: {result['machine']}.", ""])


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m tests.bench", description=__doc__)
    parser.add_argument("keys", nargs="*", metavar="KEY", help=f"any of {', '.join(KEYS)}")
    parser.add_argument("--quick", action="store_true", help="a quarter of the batch, timed once")
    parser.add_argument("--page", type=Path, help="a Markdown file to write the figures to")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.keys) - set(KEYS):
        parser.error(f"no key is called {', '.join(sorted(unknown))}; known: {', '.join(KEYS)}")
    bench = Bench(batch_size=8, repeats=1) if asked.quick else Bench()
    result = run(bench, asked.keys or list(KEYS))
    if asked.page:
        asked.page.write_text(table(result, datetime.now(UTC).date().isoformat()), "utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
