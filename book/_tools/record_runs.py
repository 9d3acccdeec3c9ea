"""Record the runs of chapter 9's symptom atlas, and store them in gptedu/assets/runs.

    python book/_tools/record_runs.py                       all, about twenty minutes on one core
    python book/_tools/record_runs.py no-mask not-shifted   some of them

Each is a small real training on Tiny Shakespeare. The first is healthy; every other one is the same
run with one mistake, made in a word of a config or in a few lines below, the way a reader would
make it. The package itself stays as it is, and its own loop trains them all.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptedu import recording
from gptedu.attention import attention, causal_mask
from gptedu.batches import Batch, epoch_batch, windows
from gptedu.checkpoint import ASSETS
from gptedu.config import GPTConfig, TrainConfig
from gptedu.corpus import tiny_shakespeare
from gptedu.model import GPT
from gptedu.seeds import untrained
from gptedu.tokenizer import CharTokenizer
from gptedu.training import Record

PROMPT = "Good owl, old owl,\n"
MODEL: dict[str, Any] = {
    "n_layer": 3, "n_head": 4, "d_model": 96, "context_length": 64, "position": "rope",
}  # fmt: skip
TRAINING: dict[str, Any] = {
    "steps": 400, "batch_size": 16, "lr": 5e-3, "eval_every": 20, "eval_batches": 10,
}  # fmt: skip
# Sixteen layers, normalised after each sum: here warm-up matters, in the model above it does not.
DEEP: dict[str, Any] = {
    "n_layer": 16, "n_head": 2, "d_model": 48, "norm_position": "post", "init": "torch",
}  # fmt: skip
FEW: dict[str, Any] = {"batch_size": 8, "lr": 4e-3}


class NoMask(nn.Module):
    """Attention without a mask: every position sees the whole window, its answer included."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return attention(q, k, v)


class InvertedMask(nn.Module):
    """The mask says what is hidden, where torch's kernel asks what may be seen."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        hidden = ~causal_mask(q.shape[2], k.shape[2])
        with torch.no_grad():  # for the picture: the last position sees nothing, and its row is 0
            weights = attention(q, k, v, hidden)[1].nan_to_num(0.0)
        return F.scaled_dot_product_attention(q, k, v, hidden), weights


class WrongAxis(nn.Module):
    """The softmax runs over the queries: columns sum to one in place of rows."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        hidden = ~causal_mask(q.shape[2], k.shape[2])
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-2)
        return weights @ v, weights


def attend_with(kernel: type[nn.Module]) -> Callable[[GPT], None]:
    def change(model: GPT) -> None:
        for block in model.blocks:
            block.attention.explicit, block.attention.kernel = kernel(), "explicit"

    return change


def without_final_norm(model: GPT) -> None:
    model.final_norm = nn.Identity()


def copy_the_head(model: GPT) -> None:
    model.head.weight = nn.Parameter(model.token_embedding.weight.detach().clone())


def keep_gradients(model: GPT) -> None:
    model.zero_grad = lambda set_to_none=True: None


def never_evaluate(model: GPT) -> None:
    model.eval = lambda: model


def not_shifted(ids: Tensor, starts: Tensor, context_length: int) -> Batch:
    x, _ = windows(ids, starts, context_length)
    return x, x


def shifted_by_two(ids: Tensor, starts: Tensor, context_length: int) -> Batch:
    x, _ = windows(ids, starts.clamp(max=len(ids) - context_length - 2), context_length)
    y, _ = windows(ids, starts.clamp(max=len(ids) - context_length - 3) + 2, context_length)
    return x, y


def unrelated(ids: Tensor, starts: Tensor, context_length: int) -> Batch:
    x, _ = windows(ids, starts, context_length)
    _, y = windows(ids, starts.roll(1), context_length)
    return x, y


def the_same_batch(
    ids: Tensor, batch_size: int, context_length: int, seed: int, step: int
) -> Batch:
    return epoch_batch(ids, batch_size, context_length, seed, 0)


@dataclass(frozen=True)
class Run:
    """One run: what is wrong with it, in words and as a change.

    Attributes:
        model, training: words that differ from those above.
        change: what is done to the new model.
        replaced: functions of the package, and what stands in for them while the run goes on.
        characters: how much of the text it is given (None: all).
    """

    title: str
    about: str
    tell: str
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    change: Callable[[GPT], None] = lambda model: None
    replaced: dict[str, Callable[..., Any]] = field(default_factory=dict)
    characters: int | None = None


CUT, BATCH = "gptedu.batches.windows", "gptedu.training.epoch_batch"
RUNS = {
    "healthy": Run(
        "Healthy",
        "A small model on Tiny Shakespeare, AdamW with twenty steps of warm-up. Nothing is wrong.",
        "It starts at ln 65 = 4.17, knows pairs of letters (2.48) after a hundred steps, and ends "
        "near 2. Validation stays a little above training.",
    ),
    "init-too-big": Run(
        "Weights too large at the start",
        "The embedding is drawn from N(0, 1), as PyTorch does it, and the head shares it: every "
        "token is sure to be followed by itself.",
        "Look at step 0 only: the loss is far above ln 65 = 4.17. A new model should have no "
        "opinion. This one recovers in part, but the time is lost.",
        model={"init": "torch", "tie_embeddings": True},
    ),
    "rate-too-high": Run(
        "Learning rate too high",
        "The rate is 0.3, sixty times the healthy one.",
        "The loss leaps up in the first steps, and takes the whole run to get a little below 3.35, "
        "what the frequencies of the letters alone would give. The sample is letters in no order.",
        training={"lr": 0.3},
    ),
    "rate-too-low": Run(
        "Learning rate too low",
        "The rate is 0.00005, a hundredth of the healthy one.",
        "A smooth curve, far too high, and still falling when the run ends. Nothing is broken; it "
        "is only slow. Compare its first steps with those of a rate that is too high: both end "
        "near 3.1.",
        training={"lr": 5e-5},
    ),
    "post-norm-warm": Run(
        "Post-norm with warm-up",
        "Sixteen narrow layers with the norm after each sum, as in 2017; the rate rises over 120 "
        "steps. This is the healthy one of the pair.",
        "The curve falls more slowly at first, while the rate rises, and then keeps falling.",
        model=DEEP,
        training=FEW | {"warmup": 120},
    ),
    "post-norm-cold": Run(
        "Post-norm without warm-up",
        "The same sixteen layers, with the full rate from the first step.",
        "The loss falls to 3.3 and stays there: letters by frequency, whatever came before. With "
        "warm-up the same model learns.",
        model=DEEP,
        training=FEW | {"warmup": 0},
    ),
    "unrelated": Run(
        "Targets of another text",
        "The targets of the windows are mixed up: each window gets those of its neighbour in the "
        "batch.",
        "The loss falls to 3.35, what the frequencies of the letters alone give, and no further: "
        "there is nothing else to learn.",
        replaced={CUT: unrelated},
    ),
    "shifted-by-two": Run(
        "Targets shifted by two",
        "The target is not the next character, but the one after it.",
        "A curve of the right shape that stays too high: the character in between is never seen. "
        "The sample has the letters of English, but not its syllables.",
        replaced={CUT: shifted_by_two},
    ),
    "no-positions": Run(
        "No positions",
        "Nothing tells the model where a token stands.",
        "The loss waits near 2.48, the pairs of letters: attention sees what came before, but not "
        "in which order. The mask tells it a little, and so it creeps on.",
        model={"position": "none"},
    ),
    "gradients-kept": Run(
        "zero_grad forgotten",
        "Each gradient is added to all those before it.",
        "It falls for a dozen steps, then climbs above where it began: every step repeats all the "
        "steps before it. The length of the gradient grows and grows.",
        change=keep_gradients,
    ),
    "no-mask": Run(
        "No mask",
        "Every position sees the whole window, so the next character too.",
        "Too good: under 0.1, where an honest model of this size stands near 2. Validation agrees, "
        "since it cheats in the same way. The sample does not: when the model writes, there is no "
        "future to copy.",
        change=attend_with(NoMask),
    ),
    "inverted-mask": Run(
        "Mask the wrong way round",
        "The mask says True for what is hidden, and the kernel reads True as what may be seen: "
        "each position sees only what comes after it.",
        "Too good, as without a mask, and never quite 0: the last position of a window sees "
        "nothing. The pictures of attention are filled above the diagonal.",
        change=attend_with(InvertedMask),
    ),
    "wrong-axis": Run(
        "Softmax over the wrong axis",
        "The weights of a column sum to one, where those of a row should.",
        "Too good, though it takes longer. No weight looks ahead, but a column is divided by what "
        "later positions ask. When the model writes, there are none, and the sample falls apart.",
        change=attend_with(WrongAxis),
    ),
    "not-shifted": Run(
        "Targets not shifted",
        "The target is the character itself.",
        "The loss is 0 within a hundred steps: the model copies. The sample is its last character "
        "for ever.",
        replaced={CUT: not_shifted},
    ),
    "overfitting": Run(
        "Learned by heart",
        "The run gets ten thousand characters of the text, and reads them again and again.",
        "Training goes on falling; validation turns round and climbs. Only the second curve can "
        "tell.",
        characters=10_000,
    ),
    "same-batch": Run(
        "The same batch for ever",
        "The loop takes its batch once, before it begins.",
        "Training falls to nearly 0 as if by a miracle; validation turns round at once and climbs "
        "far above where it began.",
        replaced={BATCH: the_same_batch},
    ),
    "dropout": Run(
        "Dropout",
        "Three units of ten are switched off in each step, and none in evaluation. This is the "
        "healthy one of the pair.",
        "Validation lies below training, and that is normal: it is measured without dropout.",
        model={"dropout": 0.3},
    ),
    "dropout-in-eval": Run(
        "Dropout left on in evaluation",
        "The same run, but the model is never put into evaluation mode.",
        "The training curve is that of the pair to the last digit, as the weights are; validation "
        "lies above it and not below, 0.08 too high. Evaluate twice: you get two numbers.",
        model={"dropout": 0.3},
        change=never_evaluate,
    ),
    "no-final-norm": Run(
        "No final norm",
        "The head reads the stream as it is.",
        "A late start: the stream is small, so the logits are, and the loss waits above 3.3 where "
        "the healthy run is below 2.8. It ends only a little higher: a bug that is easily missed.",
        change=without_final_norm,
    ),
    "tied-copied": Run(
        "Tied head copied, not shared",
        "Head and embedding start out equal, but as two tensors: from the first step on they part.",
        "No curve tells: it ends where the healthy one ends. Count the parameters: a model that "
        "shares the head has 6,305 fewer.",
        change=copy_the_head,
    ),
}


def records(run: Run, folder: Path, text: str) -> Iterator[Record]:
    """Train a run, and write it down in the folder as it goes."""
    tokenizer = CharTokenizer(text)
    config = TrainConfig(**TRAINING | run.training)
    words = MODEL | {"vocab_size": tokenizer.vocab_size} | run.model
    model = untrained(GPTConfig(**words), config.seed)
    run.change(model)
    torch.manual_seed(config.seed)  # for what draws although it should not: dropout left on
    ids = tokenizer.encode(text)[: run.characters]
    with ExitStack() as stack:
        for name, function in run.replaced.items():
            stack.enter_context(patch(name, function))
        yield from recording.record(folder, model, tokenizer, ids, config, PROMPT)


def condensed(name: str, text: str) -> dict[str, Any]:
    """The whole run as the object that is stored."""
    run, ended = RUNS[name], None
    with TemporaryDirectory() as folder:
        try:
            for _ in records(run, Path(folder), text):
                pass
        except ValueError as error:  # the loss is no number any more
            ended = str(error)
        words = {"title": run.title, "about": run.about, "tell": run.tell, "ended": ended}
        command = f"python book/_tools/record_runs.py {name}"
        return recording.condense(recording.read(folder), name=name, command=command, **words)


def store(found: dict[str, Any]) -> Path:
    """Put a condensed run among those of the book."""
    file = ASSETS / "runs" / f"{found['name']}.json"
    content = json.dumps(found, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    file.write_text(content + "\n", encoding="utf-8")
    return file


def main(names: list[str]) -> None:
    text = tiny_shakespeare()
    for name in names or RUNS:
        found = condensed(name, text)
        file = store(found)
        last, size = found["moments"][-1], file.stat().st_size / 1024
        print(f"{name:16} step {last['step']} loss {last['loss']} {size:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
