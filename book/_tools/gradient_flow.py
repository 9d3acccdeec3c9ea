"""Measure what the gradient-flow explorer shows, and store it in gptedu/assets/gradient_flow.json.

    python book/_tools/gradient_flow.py              about five minutes on two cores

Four ways to wire a block, three ways to draw the weights. At every depth one backward pass at the
start: the size of the gradient that the MLP's second matrix of each block gets, and the size of the
stream that leaves the block (as Xiong et al. 2020, section 3.4, figure 3). Then short trainings at
one depth, with and without warm-up: the losses, and the same gradients after a few steps. Means
over seeds; geometric ones where the scale is.
"""

import json
import math
import os
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gptedu.batches import random_batch
from gptedu.block import Block
from gptedu.checkpoint import ASSETS
from gptedu.config import GPTConfig
from gptedu.corpus import pocket_plays
from gptedu.loss import cross_entropy
from gptedu.model import GPT, initialise
from gptedu.tokenizer import CharTokenizer

FILE = ASSETS / "gradient_flow.json"
DEPTHS = [4, 6, 8, 12, 16, 24, 32, 48]
INITS = ["gpt2", "torch", "xavier"]
START = {"d_model": 64, "n_head": 4, "context_length": 32, "batch_size": 8, "seeds": 5}
TRAINING = {
    "n_layer": 24, "d_model": 32, "n_head": 4, "context_length": 16, "batch_size": 8, "seeds": 3,
    "steps": 120, "warmup": 60, "lr": 2e-3, "betas": [0.9, 0.99], "look": 20, "mean_of_steps": 5,
}  # fmt: skip
Wire = Callable[[Tensor, nn.Module, nn.Module], Tensor]
WIRINGS: dict[str, Wire] = {
    "pre": lambda x, f, norm: x + f(norm(x)),
    "post": lambda x, f, norm: norm(x + f(x)),
    "none": lambda x, f, norm: x + f(x),
    "no residual": lambda x, f, norm: f(norm(x)),
}


class Wired(Block):
    """A block whose two sublayers are wired as you say."""

    def __init__(self, config: GPTConfig, wire: Wire) -> None:
        super().__init__(config)
        self.wire = wire

    def forward(self, x: Tensor, cache: None = None) -> Tensor:
        x = self.wire(x, self.attention, self.attention_norm)
        return self.wire(x, self.mlp, self.mlp_norm)


def make_model(wiring: str, init: str, seed: int, **words: Any) -> GPT:
    """A GPT with blocks of this wiring. With no norm in the blocks there is none at the end."""
    torch.manual_seed(seed)
    final = "pre" if wiring in ("pre", "no residual") else "post"
    drawn = "torch" if init == "xavier" else init
    config = GPTConfig(norm_position=final, init=drawn, **words)
    model = GPT(config)
    model.blocks = nn.ModuleList(Wired(config, WIRINGS[wiring]) for _ in model.blocks)
    initialise(model)
    if init == "xavier":  # Glorot and Bengio 2010, the normal form, as in Xiong et al.; no biases
        for weight in model.blocks.parameters():
            if weight.ndim == 2:
                nn.init.xavier_normal_(weight)
        for name, weight in model.blocks.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(weight)
    return model


def gradients(model: GPT) -> list[float]:
    """For each block, the norm of the gradient of its MLP's second matrix."""
    return [block.mlp.down.weight.grad.norm().item() for block in model.blocks]


def at_the_start(model: GPT, x: Tensor, y: Tensor) -> tuple[list[float], list[float]]:
    """For each block its gradient, and the root mean square of the stream that leaves it."""
    sizes: list[float] = []

    def measure(block: nn.Module, given: Any, stream: Tensor) -> None:
        sizes.append(stream.detach().square().mean().sqrt().item())

    for block in model.blocks:
        block.register_forward_hook(measure)
    cross_entropy(model(x), y).backward()
    return gradients(model), sizes


def train(model: GPT, ids: Tensor, seed: int, warmup: int) -> tuple[list[float], list[float]]:
    """Losses of a short run with Adam, and the gradients after `look` steps. It stops where the
    loss is no number any more.
    """
    words = TRAINING
    optimizer = torch.optim.Adam(model.parameters(), betas=tuple(words["betas"]), fused=True)
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    seen: list[float] = []
    for step in range(words["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = words["lr"] * min(1.0, (step + 1) / max(1, warmup))
        x, y = random_batch(ids, words["batch_size"], words["context_length"], generator)
        loss = cross_entropy(model(x), y)
        if not math.isfinite(loss.item()):
            break
        optimizer.zero_grad()
        loss.backward()
        if step == words["look"]:
            seen = gradients(model)
        optimizer.step()
        losses.append(loss.item())
    return losses, seen


def geometric_mean(rows: list[list[float]]) -> list[float]:
    """Over seeds, to three digits; empty where a run broke down before. What 32 bits round to 0
    counts as their smallest number, about 1e-45.
    """
    if not all(rows):
        return []
    logs = torch.tensor(rows, dtype=torch.float64).clamp_min(1e-45).log()
    return [float(f"{x:.3g}") for x in logs.mean(0).exp().tolist()]


def mean_curve(runs: list[list[float]]) -> list[float]:
    """Over seeds and a few steps; it ends where the first run broke down. At most 20 nats."""
    width = TRAINING["mean_of_steps"]
    whole = min(map(len, runs)) // width * width
    if not whole:
        return []
    losses = torch.tensor([run[:whole] for run in runs]).clamp_max(20.0)
    return [round(x, 3) for x in losses.mean(0).view(-1, width).mean(1).tolist()]


def measure_start(ids: Tensor, words: dict[str, int], wiring: str, init: str) -> dict[str, Any]:
    """Gradients and sizes at every depth; in 64 bits, since without norms numbers get large."""
    B, T, seeds = words["batch_size"], words["context_length"], words["seeds"]
    shape = {k: words[k] for k in ("d_model", "n_head", "context_length")}
    found: dict[str, list[list[float]]] = {"gradient": [], "stream": []}
    for depth in DEPTHS:
        rows = []
        for seed in range(seeds):
            x, y = random_batch(ids, B, T, torch.Generator().manual_seed(seed))
            model = make_model(
                wiring, init, seed, vocab_size=int(ids.max()) + 1, n_layer=depth, **shape
            )
            rows.append(at_the_start(model.double(), x, y))
        for name, column in zip(found, zip(*rows, strict=True), strict=True):
            found[name].append(geometric_mean(list(column)))
    return found


def measure_training(ids: Tensor, wiring: str, init: str) -> dict[str, Any]:
    """Mean curves, with the rate risen slowly and at full rate from the first step."""
    shape = {k: TRAINING[k] for k in ("n_layer", "d_model", "n_head", "context_length")}
    found: dict[str, Any] = {}
    for name, warmup in (("warmup", TRAINING["warmup"]), ("at once", 0)):
        losses, seen = [], []
        for seed in range(TRAINING["seeds"]):
            model = make_model(wiring, init, seed, vocab_size=int(ids.max()) + 1, **shape)
            run, look = train(model, ids, seed, warmup)
            losses.append(run)
            seen.append(look)
        found[name] = {"loss": mean_curve(losses), "gradient": geometric_mean(seen)}
    return found


def text_ids() -> Tensor:
    text = pocket_plays.sample(60_000, seed=1)
    return torch.tensor(CharTokenizer(text).encode(text))


def measure(case: tuple[str, str]) -> tuple[str, dict[str, Any]]:
    """Everything about one way to draw and one way to wire."""
    torch.set_num_threads(1)
    init, wiring = case
    ids = text_ids()
    found = measure_start(ids, START, wiring, init) | {
        "training": measure_training(ids, wiring, init)
    }
    print(f"{init:7} {wiring}", flush=True)
    return f"{init}/{wiring}", found


def main(file: Path = FILE) -> None:
    ids = text_ids()
    share = torch.bincount(ids) / len(ids)
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        measured = dict(pool.imap(measure, [(i, w) for i in INITS for w in WIRINGS]))
    record = {
        "command": "python book/_tools/gradient_flow.py",
        "corpus": "pocket_plays.sample(60_000, seed=1)",
        "optimizer": "Adam, constant rate after warm-up, no weight decay, no clipping",
        "start": START,
        "training": TRAINING,
        "depths": DEPTHS,
        "uniform": round(math.log(len(share)), 3),
        "unigram": round(torch.special.entr(share).sum().item(), 3),
        "measured": measured,
    }
    file.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{file}: {file.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main()
