"""Broken GPTs to examine, and twenty suspects: the extra at the end of the book.

    patient = check.patient(4)                     a small GPT with one bug in it (0: a healthy one)
    check.verdict(patient, "no positions")         is it that? What speaks for it, or against it
    check.healthy(check.Patient(loss=my_loss))     does any test find anything?

A patient is a model with all that it needs to learn and to write. A bug is one part that is swapped
for a wrong one. A suspect is a test that looks at the patient there and then: no answer is stored.
The tests of the package hold every patient against every suspect. Numbers 1, 2, 6 and 7 are not
here: their code stands in the notebook, to be mended.

Reading on is like turning to the last page of a detective story.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from inspect import getdoc
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptedu import sampling
from gptedu.attention import attention
from gptedu.batches import split
from gptedu.check.report import Report, show
from gptedu.config import GPTConfig
from gptedu.corpus import pocket_plays
from gptedu.loss import cross_entropy
from gptedu.model import GPT
from gptedu.multihead import merge_heads
from gptedu.parameters import count_parameters
from gptedu.tokenizer import CharTokenizer
from gptedu.tracing import trace

Loss = Callable[[Tensor, Tensor], Tensor]


class Step(NamedTuple):
    """One update: the loss before it, and the length of the gradient that it used."""

    loss: float
    grad_norm: float


@cache
def _text() -> tuple[CharTokenizer, Tensor]:
    text = pocket_plays.sample(60_000, seed=14)
    tokenizer = CharTokenizer(text)
    return tokenizer, torch.tensor(tokenizer.encode(text))


# the parts of a healthy patient


def pairs(ids: Tensor, context_length: int) -> tuple[Tensor, Tensor]:
    """Windows side by side, (n, T), and for each token the one after it."""
    n, T = (len(ids) - 1) // context_length, context_length
    return ids[: n * T].view(n, T), ids[1 : n * T + 1].view(n, T)


def adamw(model: nn.Module, lr: float = 0.01) -> torch.optim.Optimizer:
    """AdamW for all weights, at a constant rate."""
    return torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.99), weight_decay=0.0)


def update(model: GPT, optimizer: torch.optim.Optimizer, loss: Loss, x: Tensor, y: Tensor) -> float:
    """One step downhill; returns the loss before it."""
    optimizer.zero_grad()
    value = loss(model(x), y)
    value.backward()
    optimizer.step()
    return value.item()


class Patient:
    """A small GPT that learns pocket plays: two blocks, 32 wide, 32 positions (rotary).

    Attributes:
        model: a `GPT`, in evaluation mode except while it trains.
        optimizer: the one that it trains with.
        tokenizer, train_ids, val_ids: the text, cut nine to one.
        loss: (logits, targets) -> the mean surprise, in nats.
        pairs: (ids, T) -> inputs and targets, (n, T) each.
        top_k: (logits, k) -> logits, for writing.
        update: (model, optimizer, loss, x, y) -> the loss before one step.

    Each part may be given, to swap that one alone: `Patient(loss=my_loss)`. `optimizer` makes one
    for a model, `wire` changes the model that was built, `words` are words of its config.
    ValueError: `pairs` or `loss` give back what nothing can be trained with.
    """

    def __init__(
        self,
        seed: int = 1,
        *,
        words: dict[str, Any] | None = None,
        wire: Callable[[GPT], object] = lambda model: None,
        pairs: Callable[[Tensor, int], tuple[Tensor, Tensor]] = pairs,
        loss: Loss = cross_entropy,
        optimizer: Callable[[GPT], torch.optim.Optimizer] = adamw,
        update: Callable[..., float] = update,
        top_k: Callable[[Tensor, int], Tensor] = sampling.top_k,
    ) -> None:
        self.seed, self.loss, self.update, self.pairs = seed, loss, update, pairs
        self.top_k = lambda logits, k: _tensor(top_k(logits, k))
        self.tokenizer, ids = _text()
        self.train_ids, self.val_ids = split(ids)
        size = {"vocab_size": self.tokenizer.vocab_size, "context_length": 32, "n_head": 4}
        plain = size | {"position": "rope", "init": "torch"}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = GPT(GPTConfig.preset("tiny", **plain | (words or {})))
        for block in cast(Any, self.model.blocks):
            block.attention.kernel = "explicit"
        wire(self.model)
        self.model.eval()
        self.optimizer = optimizer(self.model)
        match pairs(self.train_ids, self.model.config.context_length):
            case Tensor(ndim=2) as x, Tensor() as y if x.shape == y.shape:
                self._windows = x, y
            case _:
                raise ValueError(f"`{pairs.__name__}` must return two tensors of shape (n, T)")
        value: Any = loss(torch.zeros(*x[:2].shape, size["vocab_size"], requires_grad=True), y[:2])
        if not (isinstance(value, Tensor) and value.requires_grad and value.numel() == 1):
            raise ValueError("the loss must be one number that still knows its gradient (a tensor)")

    def batch(self, step: int, size: int = 16) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step, (size, T) each: windows drawn at random."""
        x, y = self._windows
        draw = torch.Generator().manual_seed(10_000 * self.seed + step)
        rows = torch.randint(len(x), (size,), generator=draw)
        return x[rows], y[rows]

    def train(self, steps: int) -> list[Step]:
        """So many more updates, with the batches from 0 on."""
        self.model.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            one = partial(_step, self, self.model, self.optimizer)
            history = [one(*self.batch(step)) for step in range(steps)]
        self.model.eval()
        return history

    @torch.no_grad()
    def write(
        self,
        count: int,
        prompt: str = "\n",
        *,
        temperature: int | float = 1.0,
        k: int | None = None,
        seed: int = 1,
    ) -> str:
        """The text after the prompt; the model sees the last T characters. For k, see `top_k`."""
        T, draw = self.model.config.context_length, torch.Generator().manual_seed(seed)
        ids = self.tokenizer.encode(prompt)
        for _ in range(count):
            logits = self.model(torch.tensor([ids[-T:]]))[0, -1]
            logits = sampling.temperature(logits, temperature)
            logits = logits if k is None else self.top_k(logits, k)
            ids.append(int(logits.softmax(-1).multinomial(1, generator=draw)))
        return self.tokenizer.decode(ids[-count:])


def _length(model: GPT) -> float:
    return float(nn.utils.get_total_norm(w.grad for w in model.parameters() if w.grad is not None))


def _step(p: Patient, model: GPT, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Step:
    """One update. The gradient is measured when the step uses it: it may be cleared afterwards."""
    used = [0.0]
    hook = optimizer.register_step_pre_hook(lambda *_: used.append(_length(model)))
    loss = _tensor(p.update(model, optimizer, p.loss, x, y))
    hook.remove()
    return Step(float(loss), used[-1])


def _tensor(answer: Any) -> Tensor:
    """What a reader's function gave back; NaN where `return` was forgotten."""
    return torch.atleast_1d(torch.as_tensor(math.nan if answer is None else answer).detach())


# the bugs


# A wrong `forward` in one module alone, which `print(model)` does not show.


def _mask(model: Any, diagonal: int) -> None:
    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        T, S = q.shape[2], k.shape[2]
        return attention(q, k, v, torch.ones(T, S).tril(S - T + diagonal).bool())

    for block in model.blocks:
        block.attention.explicit.forward = forward


def _dropout(model: Any) -> None:
    for block in model.blocks:
        block.dropout.forward = partial(F.dropout, p=0.2)


def _positions(model: Any, none: bool) -> None:
    for block in model.blocks:
        turn = (lambda x, _: x) if none else block.attention.rotary.forward
        block.attention.rotary.forward = lambda x, start=0, turn=turn: turn(x, 0)


def _copy_head(model: Any) -> None:
    model.head.weight = nn.Parameter(model.token_embedding.weight.detach().clone())


def _view(model: Any) -> None:
    def view(_: nn.Module, __: Any, x: Tensor) -> Tensor:
        # `split_heads` after `merge_heads` changes nothing: what is left is the view
        return merge_heads(x.view(len(x), model.config.n_head, x.shape[1], -1))

    for block in model.blocks:
        for part in (block.attention.query, block.attention.key, block.attention.value):
            part.register_forward_hook(view)


_TIED = {"tie_embeddings": True, "init": "gpt2"}
PATIENTS: dict[int, dict[str, Any]] = {
    0: {},
    3: {"wire": partial(_mask, diagonal=-1)},
    4: {"wire": partial(_mask, diagonal=1)},
    5: {"wire": _dropout, "words": {"dropout": 0.2}},
    8: {"wire": partial(_positions, none=False)},
    9: {"wire": _copy_head, "words": _TIED, "optimizer": partial(adamw, lr=0.003)},
    10: {"optimizer": lambda model: adamw(model.blocks)},
    11: {"wire": partial(_positions, none=True)},
    12: {"wire": _view},
}


def patient(number: int, seed: int = 1) -> Patient:
    """A fresh, untrained patient; 0 is healthy. ValueError: a number that is not here."""
    if number not in PATIENTS:
        raise ValueError(f"no patient {number!r} in {[*PATIENTS]}; more stand in the notebook")
    return Patient(seed, **PATIENTS[number])


# the suspects


@dataclass(frozen=True)
class Suspect:
    """A bug that many have met, and the test that finds it.

    Attributes:
        name: as `verdict` wants it.
        explanation: what happens, why it is wrong, how to mend it.
        sign: what one would see if it were this.
        test: patient -> (guilty, what was seen).
        source: address of a public thread in which it was met.
    """

    name: str
    explanation: str
    sign: str
    test: Callable[[Patient], tuple[bool, str]]
    source: str = ""

    def examine(self, patient: Patient) -> tuple[bool, str]:
        """The test's result; nothing is changed, and chance is the same at each call."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            return self.test(patient)


_BANK: dict[str, Suspect] = {}


def _suspect(name: str, source: str = "") -> Callable[..., Any]:
    """The docstring of the test: the explanation, an empty line, the sign."""

    def add(test: Callable[[Patient], tuple[bool, str]]) -> Any:
        explanation, sign = (" ".join(p.split()) for p in (getdoc(test) or "").split("\n\n"))
        _BANK[name] = Suspect(name, explanation, sign, test, source)
        return test

    return add


def verdict(patient: Patient, suspect: object) -> Report:
    """Accuse a suspect. Right: the cause is explained. Wrong: you see what speaks against it."""
    known, said = {name.lower(): name for name in _BANK}, str(suspect).strip().lower()
    if said not in known:
        near = [known[s] for s in get_close_matches(said, known, n=3, cutoff=0.3)] or [*_BANK]
        raise ValueError(f"no suspect is named {suspect!r}; near: {', '.join(map(repr, near))}")
    accused = _BANK[known[said]]
    guilty, seen = accused.examine(patient)
    if guilty:
        message = f"{accused.explanation}\n\nThe evidence: {seen}."
        return show(Report(accused.name, True, None, message, accused.source))
    message = f"Not this one. With this bug, {accused.sign} But here: {seen}."
    return show(Report(accused.name, False, None, message))


def healthy(patient: Patient) -> Report:
    """Hold a patient that you mended against all suspects: what was seen is told, and no name.

    Where nobody is found, the parts that a reader may swap are tried on made-up inputs.
    """
    seen = [seen for guilty, seen in (s.examine(patient) for s in SUSPECTS) if guilty]
    flaw = "" if seen else Suspect("", "", "", lambda p: (True, _flaw(p))).examine(patient)[1]
    what = "something: " + "; ".join(seen) if seen else "anything" + (flaw and f", but {flaw}")
    message = f"{len(seen) or 'None'} of the {len(SUSPECTS)} tests found {what}."
    return show(Report("healthy", not (seen or flaw), None, message))


def _flaw(p: Patient) -> str:
    """What a part does wrong, though no suspect did it."""
    x, y = p.pairs(torch.arange(9), 4)
    if not (torch.equal(x, x[:, :1] + torch.arange(4)) and torch.equal(y, x + 1)):
        return f"with T = 4, the text 0, 1, ..., 8 is cut into {x.tolist()}, targets {y.tolist()}"
    x, y = p.batch(0)
    logits = 1.0 * F.one_hot(x, p.tokenizer.vocab_size)
    loss, right = float(p.loss(logits, y)), float(cross_entropy(logits, y))
    if not abs(loss - right) < 0.01:
        return f"the loss of made-up logits is {loss:.2f}, the mean of -ln p is {right:.2f} nats"
    logits = torch.tensor([-1000.0, -998.0, -1001.0, -1003.0])
    kept, best = p.top_k(logits.clone(), 2).float(), sampling.top_k(logits, 2)
    if len(kept) != 4 or not torch.allclose(kept.softmax(-1), best.softmax(-1)):
        return f"with k = 2, the logits {logits.tolist()} become {kept.tolist()}"
    model = _anew(p)[1]
    loss = float(p.loss(model(x), y))
    with torch.enable_grad():
        step = _step(p, model, torch.optim.SGD(model.parameters(), 0.001), x, y)
    after = float(p.loss(model(x), y))
    if not step.grad_norm:
        return "the gradient is cleared before the step uses it, or no step comes after `backward`"
    if not (after < loss and abs(step.loss - loss) < 0.01):
        return f"one step takes the loss from {loss:.3f} to {after:.3f} and returns {step.loss:.3f}"
    return ""


def _shown(patient: Patient) -> tuple[list[int], list[int], str]:
    """One input, its target, and the beginnings of both as text."""
    x, y = (ids[0].tolist() for ids in patient.batch(0))
    text, target = (patient.tokenizer.decode(ids[:8]) for ids in (x, y))
    return x, y, f"the input {text!r} has the target {target!r}"


def _anew(patient: Patient) -> tuple[Tensor, Any, Any]:
    """Sixteen tokens, a copy of the model, and its first block: the wiring with fresh weights.

    So the verdict does not hang on what was learned, and no NaN of a broken run is in the way.
    """
    model = copy.deepcopy(patient.model)
    for name, weight in model.named_parameters():
        weight.fill_(1.0 if "norm.weight" in name else 0.0)
        if weight.ndim > 1:
            weight.normal_(std=0.2)
    return patient.val_ids[None, :16], model, model.blocks[0]


@_suspect("targets not shifted", "https://github.com/huggingface/transformers/pull/404")
def _(p: Patient) -> tuple[bool, str]:
    """Each position is asked for the very token that it reads. The model learns to copy: the loss
    falls to nearly 0, and it writes one letter for ever. The target of position i is token i + 1.

    a target would equal its input."""
    x, y, seen = _shown(p)
    return x == y, seen


@_suspect("targets two tokens on")
def _(p: Patient) -> tuple[bool, str]:
    """The targets are shifted twice, once in the data and once in the loss: the model learns to
    tell the token after the next.

    a target would be the input two places on."""
    x, y, seen = _shown(p)
    return x[2:] == y[:-2], seen


@_suspect("softmax twice", "https://github.com/bowang-lab/Transformer-GCN-QA/pull/32")
def _(p: Patient) -> tuple[bool, str]:
    """`cross_entropy` takes logits and does the softmax itself. Probabilities lie between 0 and 1,
    so a second softmax makes them nearly even: the best of models stays far from 0, and the
    gradient is faint. Hand over the logits.

    even a model that is certain and right would have a loss near 3."""
    y = p.batch(0)[1]
    loss = abs(float(p.loss(100.0 * F.one_hot(y, p.tokenizer.vocab_size), y)))
    return loss > 0.5, f"a model that is certain and right has a loss of {loss:.2f}"


@_suspect("loss averaged twice")
def _(p: Patient) -> tuple[bool, str]:
    """The mean is divided once more by the number of tokens. With AdamW the model even learns, as
    it divides the factor out again; but the loss says nothing, and clipping never acts.

    a blind guess would cost far less than ln V."""
    y, V = p.batch(0)[1], p.tokenizer.vocab_size
    loss, blind = float(p.loss(torch.zeros(*y.shape, V), y)), math.log(V)
    return loss < blind / 2, f"a blind guess costs {loss:.2f}, and ln {V} is {blind:.2f}"


@_suspect("a token may not see itself", "https://github.com/tracel-ai/burn/pull/4697")
def _(p: Patient) -> tuple[bool, str]:
    """The mask hides the diagonal too. So the first position sees nothing at all: a softmax over
    nothing but minus infinity is 0 divided by 0, NaN, and one NaN spreads to everything. A mask
    must leave each row something; the causal one is `key <= query`, not `key < query`.

    a token's weight for itself would be 0, and the first row of weights NaN."""
    ids, model, _ = _anew(p)
    rows = trace(model, ids).attention[0, 0, 0]
    total, own = float(rows[0].sum()), float(rows[1, 1])
    return own == 0, f"token 1 gives itself the weight {own:.2f}, and row 0 sums to {total:.2f}"


@_suspect("the mask lets the future in", "https://github.com/karpathy/minGPT/issues/75")
def _(p: Patient) -> tuple[bool, str]:
    """A position reads the token that it is asked for. The loss falls below what is possible, on
    validation text too. What the model writes is worthless: when it writes, the next token does
    not exist yet. The mask must be a triangle, the right way round, drawn along the diagonal. (The
    thread below met the same symptom with a triangle in order. It was filled with -10,000, and the
    scores learned to fall lower than that.)

    attention weights above the diagonal would not be 0."""
    ids, model, _ = _anew(p)
    weight = trace(model, ids).attention.nan_to_num(0.0).triu(1).max()
    return bool(weight > 0), f"the largest weight above the diagonal is {weight:.2f}"


_CUT = "https://github.com/harvardnlp/annotated-transformer/issues/118"


@_suspect("heads cut with view alone", _CUT)
def _(p: Patient) -> tuple[bool, str]:
    """`view(B, H, T, D)` keeps the numbers in their order and only cuts them anew, so what a head
    takes for its positions are slices of a few neighbouring tokens. The mask is a fine triangle
    over the wrong things: the future leaks, and little is learned. Cut with
    `view(B, T, H, D).transpose(1, 2)`.

    the query at one position would be made from other positions."""
    query, x = _anew(p)[2].attention.query, torch.randn(1, 8, p.model.config.d_model)
    other = x + F.one_hot(torch.tensor(7), 8)[:, None]
    moved = (query(x) != query(other)).any(-1)[0].nonzero().flatten().tolist()
    return moved != [7], f"a change at position 7 moves the queries at {moved}"


@_suspect("norm over the positions")
def _(p: Patient) -> tuple[bool, str]:
    """Mean and variance are taken over the positions, not over the width: `mean(1)` on (B, T, C).
    Each position then feels all others, later ones too. A norm works along the last axis.

    a position would be normalised differently without those that come later."""
    norm, x = _anew(p)[2].attention_norm, torch.randn(1, 8, p.model.config.d_model)
    moved = float((norm(x)[:, :2] - norm(x[:, :2])).abs().max())
    return not moved < 1e-3, f"a normalised position differs by {moved:.2g} when later ones are cut"


@_suspect("no positions", "https://github.com/Lightning-AI/pytorch-lightning/pull/20099")
def _(p: Patient) -> tuple[bool, str]:
    """The positions are made and never used, so the first block sees a bag of earlier tokens. With
    a causal mask, later blocks can guess at an order from what earlier ones counted, but it is a
    poor substitute. Turn queries and keys (RoPE), or add a table to the embedding.

    the first block would not notice that the earlier tokens changed places."""
    ids, model, _ = _anew(p)
    turned = torch.cat([ids[:, :-1].flip(1), ids[:, -1:]], dim=1)
    rows = [trace(model, x).residual[1, 0, -1] for x in (ids, turned)]
    moved = float((rows[0] - rows[1]).abs().max())
    return moved < 1e-5, f"with the earlier tokens turned round, the last row moves by {moved:.3f}"


@_suspect("positions restart with the cache", "https://github.com/ml-explore/mlx-lm/pull/93")
def _(p: Patient) -> tuple[bool, str]:
    """With a cache only the new token is run, and here it is told that it stands at position 0. All
    is well without a cache, in training too. Positions must start at the length of the cache.

    a token that comes alone after five others would be treated as one at position 0."""
    rotary, x = _anew(p)[2].attention.rotary, torch.ones(1, 1, 6, p.model.config.head_dim)
    moved = float((rotary(x)[:, :, 5:] - rotary(x[:, :, 5:], 5)).abs().max())
    return moved > 1e-3, f"a token at position 5, alone or in its row, differs by {moved:.2g}"


@_suspect("dropout never off", "https://github.com/pytorch/pytorch/issues/26338")
def _(p: Patient) -> tuple[bool, str]:
    """`F.dropout(x, 0.2)` has `training=True` unless it is told otherwise, so `model.eval()` does
    not reach it. Evaluations are too high and noisy, and a greedy text differs each time. Use
    `nn.Dropout`, or pass `training=self.training`.

    the same ids would give other logits at each call."""
    ids, model, _ = _anew(p)
    logits = [model(ids).nan_to_num(0.0) for _ in range(2)]
    moved = float((logits[0] - logits[1]).abs().max())
    return moved > 0, f"two calls in evaluation mode differ by {moved:.2g}"


@_suspect("dropout scaled by 1/p", "https://github.com/rasbt/LLMs-from-scratch/issues/431")
def _(p: Patient) -> tuple[bool, str]:
    """Survivors must be divided by the probability to survive, 1 - p, so that the mean stays as it
    is. Divided by p they are far too large, except at p = 0.5, where nobody notices.

    dropout would change the mean of what it is given."""
    dropout = _anew(p)[2].dropout.train()
    mean = float(dropout(torch.ones(20_000)).mean())
    return not 0.9 < mean < 1.1, f"in training, dropout turns a mean of 1 into {mean:.2f}"


@_suspect("head copied, not tied", "https://github.com/rasbt/LLMs-from-scratch/issues/822")
def _(p: Patient) -> tuple[bool, str]:
    """The head started as a copy of the embedding, and is a matrix of its own: it is counted,
    stored and trained by itself, and the two drift apart. To tie means to share:
    `head.weight = embedding.weight`, the same object.

    the config would say tied, and the model would have more weights than the ledger."""
    tied, head = p.model.config.tie_embeddings, p.model.head.weight
    count = sum(weight.numel() for weight in p.model.parameters())
    ledger = count_parameters(p.model.config).total
    guilty = tied and head is not p.model.token_embedding.weight
    return guilty, f"tie_embeddings={tied}, {count:,} weights, {ledger:,} in the ledger"


@_suspect("optimizer misses weights", "https://github.com/salesforce/awd-lstm-lm/issues/30")
def _(p: Patient) -> tuple[bool, str]:
    """The optimizer was not given all weights. What it lacks stays as it was drawn. And its
    `zero_grad` clears only its own, so the length of the whole gradient grows, which points to
    another suspect. Give it `model.parameters()`.

    some weights would not be in the optimizer."""
    known = {id(weight) for group in p.optimizer.param_groups for weight in group["params"]}
    missing = [name for name, w in p.model.named_parameters() if id(w) not in known]
    return bool(missing), f"missing in the optimizer: {', '.join(missing) or 'none'}"


@_suspect("gradients never cleared", "https://github.com/wenet-e2e/wekws/pull/73")
def _(p: Patient) -> tuple[bool, str]:
    """`backward` adds to what is there. Without `zero_grad` each step uses the sum of all gradients
    since the beginning, most of them long out of date: they point to where the hill once was.

    a second look at the same batch would double the gradient."""
    model = _anew(p)[1]
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    with torch.enable_grad():
        first, again = (_step(p, model, still, *p.batch(0)).grad_norm for _ in range(2))
    ratio = again / max(first, 1e-9)
    return ratio > 1.5, f"a second look at a batch makes the gradient {ratio:.2f} times as long"


@_suspect("learning rate zero", "https://github.com/karpathy/nanoGPT/pull/578")
def _(p: Patient) -> tuple[bool, str]:
    """Each step computes a gradient and multiplies it by 0.

    the optimizer's rate would be 0."""
    rate = max(group["lr"] for group in p.optimizer.param_groups)
    return rate == 0, f"the optimizer's rate is {rate:g}"


@_suspect("top-k removes nobody", "https://github.com/karpathy/minGPT/issues/10")
def _(p: Patient) -> tuple[bool, str]:
    """The others are filled with 1e-10, not with minus infinity. As a logit that is an ordinary
    number: it stands for exp(1e-10), which is 1, where the removed should have 0. The unlikeliest
    tokens become likelier than before. (It was meant to be -1e10.)

    tokens outside of the k best would keep a chance."""
    logits, k = torch.linspace(-3, 3, p.tokenizer.vocab_size), 3
    chance = float(p.top_k(logits.clone(), k).softmax(-1)[:-k].sum())
    return chance > 1e-4, f"with k = {k}, all others together keep a chance of {chance:.2f}"


@_suspect("final norm forgotten")
def _(p: Patient) -> tuple[bool, str]:
    """In a pre-norm model nobody has normalised the stream when it leaves the last block. Without
    a final norm the head reads numbers of any size.

    the head would read the stream as it is."""
    x = 5 * torch.randn(1, 8, p.model.config.d_model)
    y = p.model.final_norm(x)
    return torch.equal(x, y), f"before the head, a spread of {x.std():.1f} becomes {y.std():.1f}"


@_suspect("scores divided by sqrt(C)", "https://github.com/karpathy/ng-video-lecture/pull/6")
def _(p: Patient) -> tuple[bool, str]:
    """The dot product of a query and a key runs over the head size D, so scores are divided by its
    root. With the root of the width C, the attention of an untrained model is too even.

    scores would be multiplied by 1 / sqrt(C)."""
    ids, model, block = _anew(p)
    seen, C, D = trace(model, ids), p.model.config.d_model, p.model.config.head_dim
    normal = (seen[f"blocks.0.attention.{name}_norm"] for name in ("query", "key"))
    q, k = (block.attention.rotary(x)[0, 0] for x in normal)
    scores, logs = q[-1] @ k[:-1].T, seen.attention[0, 0, 0, -1, :-1].log()
    high, low = scores.argmax(), scores.argmin()
    scale = float((logs[high] - logs[low]) / (scores[high] - scores[low]))
    guilty = C > D and abs(scale * C**0.5 - 1) < 0.05
    return guilty, f"scores are multiplied by {scale:.3f}, and 1 / sqrt(D) is {D**-0.5:.3f}"


_OVERLAP = "https://github.com/rasbt/LLMs-from-scratch/issues/23"


@_suspect("validation text in the training text", _OVERLAP)
def _(p: Patient) -> tuple[bool, str]:
    """The model was tested on what it had learned by heart. Split the text first, and cut windows
    afterwards, from each part by itself.

    passages of the validation text would stand in the training text."""
    known, unseen = (p.tokenizer.decode(ids.tolist()) for ids in (p.train_ids, p.val_ids))
    pieces = [unseen[i : i + 150] for i in range(0, len(unseen) - 150, 300)]
    found = sum(piece in known for piece in pieces)
    return found > len(pieces) / 2, f"{found} of {len(pieces)} passages stand in the training text"


SUSPECTS = tuple(_BANK.values())
