"""Exercises of chapter 7: the loss at the start, the whole forward pass, tying, other heads.

The probes' models have random gains, biases and positions, so that nothing that is left out can
hide. In one of them the vocabulary is as large as the width: there the wrong vectors have the right
shape, and only their numbers tell.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptedu.check.exercise import Exercise, Probes
from gptedu.config import GPTConfig
from gptedu.model import GPT


def _draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _model(seed: int, **words: Any) -> GPT:
    """A small model with all its numbers at random, gains and biases too."""
    sizes = {"n_layer": 2, "n_head": 2, "d_model": 8, "context_length": 6, "vocab_size": 8}
    model, draw = GPT(GPTConfig(**sizes | words)).eval(), _draw(seed)
    with torch.no_grad():
        for weight in model.parameters():
            noise = 0.4 * torch.randn(weight.shape, generator=draw)
            weight.copy_(noise + (weight.ndim == 1))
    return model


def _ids(seed: int, B: int = 2, T: int = 5, V: int = 8) -> Tensor:
    return torch.randint(V, (B, T), generator=_draw(seed))


# the loss at the start


def _start_numbers(loss: Any, vocab_size: int, spread: float) -> dict[str, Any]:
    even, variance = math.log(vocab_size), spread**2
    words = {"V": vocab_size, "s": spread, "s2": variance, "even": even}
    return words | {"loss": float(loss), "right": even + variance / 2}


initial_loss = Exercise(
    "initial_loss",
    task="initial_loss(vocab_size, spread): the expected loss, in nats, of a new model whose "
    "logits are normal with mean 0 and standard deviation spread.",
    reference=lambda V, spread: math.log(V) + spread**2 / 2,
    probes=lambda: {
        "65 tokens, spread 0.6": (65, 0.6),
        "50,257 tokens, spread 0.25": (50257, 0.25),
        "65 tokens, spread 0": (65, 0.0),
    },
    outputs=("loss",),
)


_start = partial(initial_loss.mistake, numbers=_start_numbers)


@_start("spread forgotten")
def _(V: Any, spread: Any) -> Any:
    """You answer ln {V} = {loss:.3f}, the loss of a model without opinions. Random opinions are
    wrong more often than right: a spread of {s} costs {s}²/2, and the loss is {right:.3f}."""
    return math.log(V)


@_start("whole variance added")
def _(V: Any, spread: Any) -> Any:
    """You add the whole variance, {s2:.3f}. The mean of e^x for a normal x of mean 0 is
    e^(variance / 2): only half of it is lost, so {right:.3f} and not {loss:.3f}."""
    return math.log(V) + spread**2


@_start("spread in place of variance")
def _(V: Any, spread: Any) -> Any:
    """You add half the standard deviation, {s} / 2. What counts is the variance, its square:
    {s2:.3f} / 2. Small opinions cost next to nothing, large ones very much."""
    return math.log(V) + spread / 2


@_start("price with the wrong sign")
def _(V: Any, spread: Any) -> Any:
    """Your loss, {loss:.3f}, lies below ln {V} = {even:.3f}. A model that knows nothing cannot be
    better than one that says so. Opinions drawn at random cost: add half the variance."""
    return math.log(V) - spread**2 / 2


@_start("bits in place of nats")
def _(V: Any, spread: Any) -> Any:
    """You use logarithms to base 2: log2 {V}. All losses of this book are in nats, with `math.log`;
    ln {V} is {even:.3f}."""
    return math.log2(V) + spread**2 / 2


@_start("perplexity in place of loss")
def _(V: Any, spread: Any) -> Any:
    """Your {loss:.1f} is the perplexity, e to the power of the loss: among so many equally likely
    tokens the model is in doubt. The loss is its logarithm, {right:.3f}."""
    return V * math.exp(spread**2 / 2)


# the forward pass


def _pass(
    model: GPT,
    ids: Tensor,
    *,
    position: Callable[[Tensor], Any] = lambda rows: rows,
    scale: float = 1.0,
    step: Callable[[GPT, int, Tensor, Tensor], Tensor] = lambda model, i, x, _: model.blocks[i](x),
    end: Callable[[GPT, Tensor], Tensor] = lambda model, x: model.head(model.final_norm(x)),
) -> Tensor:
    """The whole model with one screw turned."""
    x = start = model.token_embedding(ids) * scale
    if (table := model.position_embedding) is not None:
        x = start = start + position(table(ids.shape[1]))
    for i in range(len(model.blocks)):
        x = step(model, i, x, start)
    return end(model, x)


def _forward_numbers(logits: Any, model: GPT, ids: Tensor) -> dict[str, Any]:
    hidden = model.hidden(ids)
    T, L = ids.shape[1], len(model.blocks)
    return {"T": T, "L": L, "spread": logits.std().item(), "right": model.head(hidden).std().item()}


def _model_probes() -> Probes:
    return {
        "learned positions": (_model(1), _ids(1)),
        "RoPE, RMSNorm, SwiGLU": (
            _model(2, position="rope", norm="rmsnorm", mlp="swiglu", vocab_size=11, n_layer=3),
            _ids(2, V=11),
        ),
    }


forward = Exercise(
    "forward",
    task="forward(model, ids): the logits (B, T, V), from model.token_embedding, "
    "model.position_embedding (called with T; None in a model with RoPE), model.blocks, "
    "model.final_norm and model.head.",
    reference=_pass,
    probes=_model_probes,
    outputs=("logits",),
)


_forward = partial(forward.mistake, numbers=_forward_numbers)


@_forward("positions and final norm forgotten")
def _(*inputs: Any) -> Any:
    """Two parts are missing. Add `model.position_embedding(T)` to the token embedding, where the
    model has one. And normalise once more before the head, `model.final_norm(x)`: your logits have
    a spread of {spread:.2f}, where it should be {right:.2f}."""
    return _pass(*inputs, position=lambda rows: 0.0, end=lambda model, x: model.head(x))


@_forward(
    "final norm forgotten", source="https://github.com/harvardnlp/annotated-transformer/issues/110"
)
def _(*inputs: Any) -> Any:
    """The head reads the bare stream. Each of the {L} blocks has added to it, so your logits have
    a spread of {spread:.2f} in place of {right:.2f}: the surer, the deeper the model. In a pre-norm
    model, `final_norm` comes before the head."""
    return _pass(*inputs, end=lambda model, x: model.head(x))


@_forward("positions forgotten")
def _(*inputs: Any) -> Any:
    """Nothing tells your blocks where a token stands. With RoPE that is right, since attention does
    it; but a model with a `position_embedding` needs it added to the token embedding."""
    return _pass(*inputs, position=lambda rows: 0.0)


@_forward("one position for all")
def _(*inputs: Any) -> Any:
    """You add the same row of the position table to every token. `model.position_embedding({T})`
    gives {T} rows, one for each of the {T} positions of the text."""
    return _pass(*inputs, position=lambda rows: rows[-1])


@_forward("embedding multiplied by sqrt(C)")
def _(model: Any, ids: Any) -> Any:
    """You multiply the token embedding by the root of the width, as the first Transformer did
    (Vaswani et al. 2017, section 3.4). A GPT does not: its positions would be drowned."""
    return _pass(model, ids, scale=model.config.d_model**0.5)


@_forward("blocks side by side")
def _(*inputs: Any) -> Any:
    """Each of your {L} blocks reads the embedding, and only the last one's answer is kept: probably
    `y = block(x)` in the loop, with x unchanged. Write `x = block(x)`, so that each block reads
    what the one before it left."""
    return _pass(*inputs, step=lambda model, i, x, start: model.blocks[i](start))


@_forward("residual added twice")
def _(*inputs: Any) -> Any:
    """You add x to what a block returns. But a block holds its own residual additions and returns
    the whole stream, not the change: the old stream is counted twice, and doubled in each of the
    {L} blocks. It is `x = block(x)`."""
    return _pass(*inputs, step=lambda model, i, x, _: x + model.blocks[i](x))


@_forward("final norm after every block")
def _(*inputs: Any) -> Any:
    """You apply `final_norm` inside the loop. The stream must stay as it is between the blocks,
    each of which normalises what it reads; once, after the last of the {L}, is enough."""

    def step(model: GPT, i: int, x: Tensor, _: Tensor) -> Tensor:
        return model.final_norm(model.blocks[i](x))

    return _pass(*inputs, step=step, end=lambda model, x: model.head(x))


@_forward("probabilities in place of logits")
def _(*inputs: Any) -> Any:
    """You return the softmax. Whoever calls a GPT wants logits: the loss makes its own softmax, and
    a second one would flatten everything. The spread of your output is {spread:.2f}, that of the
    logits {right:.2f}."""
    return _pass(*inputs).softmax(-1)


@_forward("the last position only")
def _(*inputs: Any) -> Any:
    """You return the logits of the last position. That is what writing needs, but a GPT answers at
    all {T} positions, and training grades them all. Return everything, (B, T, V)."""
    return _pass(*inputs)[:, -1]


# tying


def _trained(tie: Callable[[GPT], Any], model: GPT, ids: Tensor) -> tuple[Any, ...]:
    """Tie, count, run; then a step of plain gradient descent, and run again."""
    tied = tie(model)
    if not isinstance(tied, GPT):
        raise ValueError(f"tie(model) must return the model; it returned {type(tied).__name__}")
    optimizer = torch.optim.SGD(tied.parameters(), lr=0.5)
    before = tied(ids)
    F.cross_entropy(before[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    optimizer.step()
    return sum(w.numel() for w in tied.parameters()), before.detach(), tied(ids).detach()


def _tie_numbers(output: tuple[Any, ...], model: GPT, ids: Tensor) -> dict[str, Any]:
    table = model.token_embedding.weight.numel()
    untied = sum(weight.numel() for weight in model.parameters())
    return {"count": output[0], "right": untied - table, "table": table}


def _tie(model: GPT) -> GPT:
    model.head.weight = model.token_embedding.weight
    return model


tie = Exercise(
    "tie",
    task="tie(model): make the head of a GPT use the matrix of its token embedding, one tensor "
    "for both, and return the model.",
    reference=_tie,
    probes=lambda: {"a model of two layers": (_model(3, vocab_size=9, bias=False), _ids(3, V=9))},
    outputs=("number of parameters", "logits", "logits after a step"),
    run=_trained,
)


@tie.mistake("not tied at all", numbers=_tie_numbers)
def _(model: Any) -> Any:
    """The model is as it was: {count} parameters, and a head of its own. Give the head's `weight`
    the embedding's: an assignment to `model.head.weight`."""
    return model


@tie.mistake(
    "copied, not shared",
    numbers=_tie_numbers,
    source="https://github.com/rasbt/LLMs-from-scratch/issues/822",
)
def _(model: Any) -> Any:
    """You copied the numbers. The logits are right, but there are still two matrices: {count}
    parameters in place of {right}, and after one step of training the two differ. Assign the
    parameter itself, `model.head.weight = model.token_embedding.weight`."""
    model.head.weight.data.copy_(model.token_embedding.weight)
    return model


@tie.mistake("the embedding took the head's matrix", numbers=_tie_numbers)
def _(model: Any) -> Any:
    """One matrix for both, but it is the head's: the numbers of the embedding are lost, and your
    logits are not those that were asked for. Assign the other way round,
    `model.head.weight = model.token_embedding.weight`."""
    model.token_embedding.weight = model.head.weight
    return model


@tie.mistake("two parameters on one memory", numbers=_tie_numbers)
def _(model: Any) -> Any:
    """With `.data` both parameters use the same numbers, but they are two for PyTorch: {count} in
    place of {right}. The plain step of this check moves the numbers twice, as it should; Adam would
    keep two memories for one matrix, and weight decay would work twice."""
    model.head.weight.data = model.token_embedding.weight.data
    return model


@tie.mistake("shared, but the head does not learn", numbers=_tie_numbers)
def _(model: Any) -> Any:
    """The head shows the embedding's numbers, but no gradient comes back from it (`detach`?): only
    the looking-up teaches the matrix. The gradient of a tied matrix is the sum of both uses. Assign
    the parameter itself."""
    frozen = nn.Parameter(model.token_embedding.weight.detach(), requires_grad=False)
    model.head.weight = frozen
    return model


# another head


def _stream(model: GPT, ids: Tensor) -> Tensor:
    return _pass(model, ids, end=lambda model, x: x)


def _values(read: Callable[[GPT, Tensor], Tensor]) -> Callable[[GPT, nn.Linear, Tensor], Tensor]:
    return lambda model, head, ids: head(read(model, ids))[..., 0]


def _value_probes() -> Probes:
    models = (_model(4), _model(5, position="rope", norm="rmsnorm"))
    ids = (_ids(4), _ids(5, B=3))
    probes = {}
    for seed, name in enumerate(("learned positions", "RoPE and RMSNorm")):
        head = nn.Linear(8, 1)
        with torch.no_grad():
            head.weight.copy_(torch.randn(1, 8, generator=_draw(seed)))
            head.bias.fill_(0.5)
        probes[name] = (models[seed], head, ids[seed])
    return probes


value_head = Exercise(
    "value_head",
    task="value_head(model, head, ids): with head an nn.Linear(C, 1), one number for each position "
    "of each text, (B, T), read off the vectors that the language head reads.",
    reference=_values(GPT.hidden),
    probes=_value_probes,
    outputs=("values",),
)


def _value_numbers(values: Any, model: GPT, head: nn.Linear, ids: Tensor) -> dict[str, Any]:
    B, T = ids.shape
    size = _stream(model, ids).square().mean().sqrt().item()
    return {"B": B, "T": T, "size": size, "shape": tuple(values.shape)}


_value = partial(value_head.mistake, numbers=_value_numbers)


@_value("one number for each text, the mean")
def _(model: Any, head: Any, ids: Any) -> Any:
    """You average over the positions: {B} numbers for {B} texts. Asked is how things stand at each
    of the {T} positions. A mean would also let an early position hear of the later ones."""
    return _values(GPT.hidden)(model, head, ids).mean(1)


@_value("one number for each text, the last")
def _(model: Any, head: Any, ids: Any) -> Any:
    """You keep the last position only. That is how a reward for a whole answer is read; a value
    head speaks at all {T} positions, since each is a state of the game."""
    return _values(GPT.hidden)(model, head, ids)[:, -1]


@_value("an axis of length 1 left over")
def _(model: Any, head: Any, ids: Any) -> Any:
    """Your values have the shape {shape}. For a single text, less targets of shape (1, {T}), that
    gives {T} times {T} differences: broadcasting pairs every position with every other, and nothing
    complains. Drop the last axis: `squeeze(-1)`."""
    return head(model.hidden(ids))


@_value("read from the logits")
def _(*inputs: Any) -> Any:
    """You read the logits. Here the vocabulary happens to be as large as the width, so it runs; but
    the logits have been made for another purpose. Read what the language head reads:
    `model.hidden(ids)`."""
    return _values(lambda model, ids: model(ids))(*inputs)


@_value("read before the final norm")
def _(*inputs: Any) -> Any:
    """You read the stream as the last block left it, of size {size:.2f}. The language head reads
    it after the final norm, of size 1 times the gain: `model.hidden(ids)`."""
    return _values(_stream)(*inputs)


@_value("read from the embedding")
def _(*inputs: Any) -> Any:
    """You read the token embedding: your number depends on the one token alone, and not on the game
    that led to it. Read the stream after all blocks, `model.hidden(ids)`."""
    return _values(lambda model, ids: model.token_embedding(ids))(*inputs)


# the encoder's objective


def _surprise(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), ids, reduction="none")


def _masked_numbers(loss: Any, logits: Tensor, ids: Tensor, hidden: Tensor) -> dict[str, Any]:
    right = _surprise(logits, ids)[hidden].mean().item()
    return {"loss": float(loss), "right": right, "hidden": int(hidden.sum()), "all": ids.numel()}


def _masked_probes() -> Probes:
    few = torch.zeros(2, 9).bool()
    few[0, 3] = few[1, 5] = few[1, 7] = True
    logits = [2 * torch.randn(2, 9, 7, generator=_draw(seed)) for seed in (6, 7)]
    ids = [_ids(seed, T=9, V=7) for seed in (6, 7)]
    return {
        "three hidden tokens of 18": (logits[0], ids[0], few),
        "five in one text, one in the other": (
            logits[1],
            ids[1],
            torch.tensor([[0, 1, 1, 0, 1, 0, 1, 1, 0], [0, 0, 1, 0, 0, 0, 0, 0, 0]]).bool(),
        ),
    }


masked_loss = Exercise(
    "masked_loss",
    task="masked_loss(logits, ids, hidden): the mean of -ln of the probability of the true token, "
    "over the tokens where hidden (B, T) is True, in nats.",
    reference=lambda logits, ids, hidden: _surprise(logits, ids)[hidden].mean(),
    probes=_masked_probes,
    outputs=("loss",),
)


_masked = partial(masked_loss.mistake, numbers=_masked_numbers)


@_masked("every token counted")
def _(logits: Any, ids: Any, hidden: Any) -> Any:
    """You grade all {all} tokens, but the model saw most of them: without a causal mask it only has
    to copy those, and they drown the {hidden} that it must guess. Grade the hidden ones only,
    `logits[hidden]` against `ids[hidden]`."""
    return _surprise(logits, ids).mean()


@_masked("the visible ones counted")
def _(logits: Any, ids: Any, hidden: Any) -> Any:
    """You grade the tokens that the model could see. It would learn to copy, and nothing else.
    `hidden` is True where a token was hidden: {hidden} of {all} here."""
    return _surprise(logits, ids)[~hidden].mean()


@_masked("divided by all tokens")
def _(logits: Any, ids: Any, hidden: Any) -> Any:
    """You set the visible ones to 0, then take the mean over all {all}: your {loss:.3f} should be
    {right:.3f}. Divide by the number of hidden tokens, {hidden}; else the loss depends on how many
    were hidden."""
    return (_surprise(logits, ids) * hidden).mean()


@_masked("mean of the texts' means")
def _(logits: Any, ids: Any, hidden: Any) -> Any:
    """You average in each text, then over the texts. A text with one hidden token then weighs as
    much as one with many. Take one mean over all {hidden} hidden tokens."""
    surprise = _surprise(logits, ids) * hidden
    return (surprise.sum(1) / hidden.sum(1)).mean()


@_masked("the next token asked for")
def _(logits: Any, ids: Any, hidden: Any) -> Any:
    """You compare the logits at a hidden place with the token *after* it. That is a GPT's
    objective. An encoder says what stands at the place itself: no shift."""
    return _surprise(logits[:, :-1], ids[:, 1:])[hidden[:, :-1]].mean()
