"""Training: take a batch, measure the loss, step downhill; look at unseen text now and then.

    loss(batch) -> gradient -> clip -> optimizer, `steps` times

Chapter 9. The order of the windows and the dropout of a step follow from the seed and the number of
the step alone, so a run that is resumed at any step goes on bit for bit as if it had never stopped.
bf16 is autocast (Micikevicius et al. 2018): products in 16 bits, weights and optimizer in 32.
With several processes (`parallel`) each takes its share of every batch.
"""

import hashlib
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from gptedu import parallel
from gptedu.batches import contiguous_batches, epoch_batch, random_batch, split
from gptedu.checkpoint import read_notes, resume, save_state
from gptedu.config import TrainConfig
from gptedu.files import only_writer
from gptedu.loss import cross_entropy
from gptedu.model import GPT
from gptedu.optim import learning_rate, make_optimizers, set_learning_rate

FREE_WORDS = ("out", "save_every", "shard")  # a run may go on with others
CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Record:
    """What happened in one step.

    Attributes:
        step: updates so far. Step 0 is the model as it came: no update, `lr` and `grad_norm` 0.
        tokens: tokens trained on so far.
        seconds: time spent in updates so far, evaluations and the caller's work left out.
        loss: of this step's batch before its update, in nats per token.
        val_loss: on the validation split after the update; None where none was due.
        lr: AdamW's learning rate in this step.
        grad_norm: length of the whole gradient, before clipping.
    """

    step: int
    tokens: int
    seconds: float
    loss: float
    val_loss: float | None
    lr: float
    grad_norm: float


def train(
    model: GPT, corpus_ids: Int[Tensor, " N"] | Sequence[int], config: TrainConfig
) -> Generator[Record, None, None]:
    """Train `model` in place on the first 90 % of the ids; the rest is for evaluation.

    Yields a `Record` at step 0, before any update, and after each step. Between updates the model
    is in eval mode, so the caller may sample, plot, or stop (`break`). It runs where the model's
    parameters are. Where the folder `config.out` has the checkpoint of this run, it is continued:
    the records go on after it, and a finished run yields none.

    Ctrl-C, or a notebook's stop button, waits until the step is whole; its record still comes, then
    the checkpoint is written and KeyboardInterrupt raised. The same happens where one is thrown in
    (`run.throw(KeyboardInterrupt)`).

    Raises:
        ValueError: a text that is too short, a folder with the checkpoint of another run or with a
            run that is still going on, no compiler, or a loss that is no number any more.
        OSError: a checkpoint could not be written; the one before it is still there.
    """
    ids = torch.as_tensor(corpus_ids, dtype=torch.long, device=next(model.parameters()).device)
    return _Run(model, ids, config).records()


def update(
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    x: Int[Tensor, "B T"],
    y: Int[Tensor, "B T"],
    config: TrainConfig,
    step: int,
) -> tuple[float, float]:
    """The update number `step` (from 0); returns the loss before it, and the gradient's norm.

    The batch is cut into `accumulate` equal parts, whose gradients add up to those of the whole. Of
    several processes each is given its share of the batch; the loss is the mean of all.
    """
    set_learning_rate(optimizers, config, step)
    model.zero_grad()
    loss = 0.0
    for part_x, part_y in zip(x.chunk(config.accumulate), y.chunk(config.accumulate), strict=True):
        part = _loss(model, part_x, part_y, config.precision) / config.accumulate
        part.backward()
        loss += part.item()
    loss = parallel.mean(loss)
    length = nn.utils.clip_grad_norm_(model.parameters(), config.clip or math.inf)
    norm = float(parallel.whole(length))
    if not math.isfinite(loss + norm):
        raise ValueError(
            f"the loss at step {step + 1} is {loss} and its gradient {norm}, at a learning rate of "
            f"{learning_rate(config, step):.3g}: training broke down, and the weights stay as they "
            "were before this step. Try a smaller lr (and muon_lr), more warmup, or clip=1.0"
        )
    for optimizer in optimizers:
        optimizer.step()
    return loss, norm


@torch.no_grad()
def evaluate(
    model: GPT,
    ids: Int[Tensor, " N"],
    batch_size: int = 32,
    *,
    batches: int | None = None,
    precision: str = "fp32",
    seed: int = 0,
) -> float:
    """Mean loss on a text in nats per token, without dropout.

    The whole text is read once in windows side by side, or, when `batches` is given, so many
    batches of windows at random places: quicker, but an estimate.
    """
    T = model.config.context_length
    generator = torch.Generator().manual_seed(seed)
    source = (
        contiguous_batches(ids, batch_size, T)
        if batches is None
        else (random_batch(ids, batch_size, T, generator) for _ in range(batches))
    )
    training = model.training
    model.eval()
    total, count = 0.0, 0
    for x, y in source:
        total += _loss(model, x, y, precision).item() * y.numel()
        count += y.numel()
    model.train(training)
    return total / count


def _loss(model: nn.Module, x: Tensor, y: Tensor, precision: str) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bf16"):
        logits = model(x)
    return cross_entropy(logits, y)


@dataclass
class _Progress:
    """What a run remembers between steps, beside its tensors."""

    step: int = -1  # step 0 is still to come
    seconds: float = 0.0
    best_loss: float = math.inf
    evaluations_since_best: int = 0


class _Run:
    """A training under way."""

    def __init__(self, model: GPT, ids: Tensor, config: TrainConfig) -> None:
        self.model, self.config = model, config
        self.train_ids, self.val_ids = split(ids)
        self.trained = parallel.shard(model) if config.shard else parallel.replicate(model)
        self.optimizers = make_optimizers(model, config)
        self.progress = _Progress()
        self.best: dict[str, Tensor] = {}
        self.identity = _identity(model, ids, config)
        self.folder = Path(config.out) if config.out else None
        self.forwards = _compile(model) if config.compile else []
        self._batch(0)  # a text that is too short is an error here, not at the first step
        self.lock = only_writer(self.folder) if self.folder and parallel.rank() == 0 else None
        parallel.wait()
        self._resume()
        model.eval()

    def records(self) -> Generator[Record, None, None]:
        p, c = self.progress, self.config
        try:
            while p.step < c.steps and p.evaluations_since_best != c.patience:
                with interrupts_wait(signal.SIGINT) as asked:
                    record = self._step()
                try:
                    yield record
                    if parallel.any_of(bool(asked)):
                        raise KeyboardInterrupt
                except KeyboardInterrupt:  # between two updates nothing is half done
                    self._save()
                    raise
                if c.save_every and p.step % c.save_every == 0:
                    self._save()
            if c.keep_best:
                self.model.load_state_dict(self.best)
            self._save()
        finally:
            if self.lock:
                self.lock.release()

    def _step(self) -> Record:
        p, c = self.progress, self.config
        p.step += 1
        if p.step == 0:
            with torch.no_grad():
                loss = parallel.mean(_loss(self.model, *self._batch(0), c.precision).item())
            norm = lr = 0.0
        else:
            loss, norm = self._update(p.step - 1)
            lr = learning_rate(c, p.step - 1)
        due = p.step % c.eval_every == 0 or p.step == c.steps
        val_loss = self._evaluate() if due else None
        tokens = p.step * c.batch_size * c.accumulate * self.model.config.context_length
        return Record(p.step, tokens, p.seconds, loss, val_loss, lr, norm)

    def _update(self, step: int) -> tuple[float, float]:
        start = time.perf_counter()
        x, y = self._batch(step)
        self.model.train()
        try:
            with _seeded(self.config.seed, step, x.device), _swapped(self.model, self.forwards):
                return update(self.trained, self.optimizers, x, y, self.config, step)
        finally:
            self.model.eval()
            self.progress.seconds += time.perf_counter() - start

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        c = self.config
        T = self.model.config.context_length
        x, y = epoch_batch(self.train_ids, c.batch_size * c.accumulate, T, c.seed, step)
        return parallel.share(x), parallel.share(y)

    def _evaluate(self) -> float:
        p, c = self.progress, self.config
        loss = evaluate(
            self.model,
            self.val_ids,
            c.batch_size,
            batches=c.eval_batches,
            precision=c.precision,
            seed=c.seed,
        )
        p.evaluations_since_best += 1
        if loss < p.best_loss:
            p.best_loss, p.evaluations_since_best = loss, 0
            if c.keep_best:
                self.best = {name: t.clone() for name, t in self.model.state_dict().items()}
        return loss

    def _save(self) -> None:
        if self.folder is None:
            return
        notes = {"run": self.identity, "progress": asdict(self.progress)}
        what = (self.model, self.optimizers, notes, self.best)
        if self.config.shard:
            parallel.save_shards(self.folder, self.progress.step, *what)
        elif parallel.rank() == 0:
            save_state(self.folder / CHECKPOINT, *what)
        parallel.wait()

    def _resume(self) -> None:
        """Go on with what the folder holds, in one file or in shards, if it holds anything."""
        if self.folder is None:
            return
        file, shards = self.folder / CHECKPOINT, parallel.last_shards(self.folder)
        if file.exists():
            self._check_same(file, notes := read_notes(file))
            if self.config.shard:
                raise ValueError(
                    f"{file} was written without shard=True; go on without it, or choose another "
                    "`out` (a run in shards, though, may go on in one piece)"
                )
            self.best = resume(file, self.model, self.optimizers)
        elif shards is not None:
            folder, notes = shards
            self._check_same(folder, notes)
            self.best = parallel.resume_shards(folder, self.model, self.optimizers)
        else:
            return
        self.progress = _Progress(**notes["progress"])

    def _check_same(self, file: Path, notes: dict[str, Any]) -> None:
        there, here = notes["run"], self.identity
        differing = [
            f"{word} is {there.get(word)!r} there and {here.get(word)!r} here"
            for word in sorted(there.keys() | here.keys())
            if there.get(word) != here.get(word)
        ]
        if differing:
            raise ValueError(
                f"{file} is the checkpoint of another run: {'; '.join(differing)}. Go on with its "
                f"words, choose another `out`, or delete that file to start anew"
            )


def _identity(model: GPT, ids: Tensor, config: TrainConfig) -> dict[str, Any]:
    """What must be the same for a run to go on."""
    words = {**model.config.to_dict(), **config.to_dict()}
    digest = hashlib.sha256(ids.cpu().numpy().tobytes()).hexdigest()
    return {word: value for word, value in words.items() if word not in FREE_WORDS} | {
        "corpus_sha256": digest[:16]
    }


@contextmanager
def _seeded(seed: int, step: int, device: torch.device) -> Iterator[None]:
    """Dropout's own random numbers for this step; the caller's are left as they are."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed((seed * 1_000_003 + step + 2**40 * parallel.rank()) % 2**63)
        yield


@contextmanager
def interrupts_wait(*kinds: signal.Signals) -> Iterator[list[int]]:
    """Gives a list that these signals fill in place of stopping; a second one stops at once."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked  # signals never reach another thread
        return

    def note(number: int, _: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {kind: signal.signal(kind, note) for kind in kinds}
    try:
        yield asked
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _compile(model: GPT) -> list[Callable[..., Tensor]]:
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    compiler = os.environ.get("CXX", usual)
    if shutil.which(compiler) is None:
        raise ValueError(
            f"compile=True needs a C++ compiler, and there is no {compiler!r} here; "
            "install one, name it in the environment variable CXX, or use compile=False"
        )
    return [torch.compile(block.forward, dynamic=False) for block in model.blocks]


@contextmanager
def _swapped(model: GPT, forwards: list[Callable[..., Tensor]]) -> Iterator[None]:
    """The blocks run compiled in here only: elsewhere each new length would compile again."""
    compiled = list(zip(model.blocks, forwards, strict=False))
    for block, forward in compiled:
        block.forward = forward
    try:
        yield
    finally:
        for block, _ in compiled:
            del block.forward
