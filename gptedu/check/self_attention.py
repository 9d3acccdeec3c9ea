"""Exercises of chapter 3: softmax, the causal mask, attention, and a head.

A probe must tell all mistakes apart. So the head size is not the number of positions, nor is half
of it its root, and one probe has scores so large that a 'large' finite mask value shows.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gptedu.attention import Head
from gptedu.attention import attention as right_attention
from gptedu.attention import causal_mask as right_mask
from gptedu.check.exercise import Exercise, Probes, normal

INF = float("inf")


# softmax


def _ratio(e: Tensor, axis: int | tuple[int, ...] = -1) -> Tensor:
    return e / e.sum(axis, keepdim=True)


def _sums(weights: Tensor, *_: Any) -> dict[str, Any]:
    rows, columns = weights.sum(-1).flatten(), weights.sum(-2).flatten()
    return {"row": rows[0].item(), "column": columns[0].item(), "all": rows.sum().item()}


softmax = Exercise(
    "softmax",
    task="softmax(x) turns the last axis of the scores x into weights that sum to 1.",
    reference=lambda x: x.softmax(-1),
    probes=lambda: {
        "a square of scores": (normal(4, 4),),
        "a cube of scores": (2 * normal(4, 4, 4),),
        "scores near 1,000": (1000 + normal(4, 4),),
        "rows at different heights": (normal(4, 4) + torch.tensor([[0], [500], [9], [-800]]),),
    },
    outputs=("weights",),
)


@softmax.mistake("maximum not subtracted")
def _(x: Any) -> Any:
    """exp(1000) is more than a 32-bit number holds: it becomes infinity, and infinity over
    infinity is NaN. Subtract the row's maximum first: `x - x.max(-1, keepdim=True).values`. The
    weights are the same, since the factor cancels, and the largest exponent is 0."""
    return _ratio(x.exp())


@softmax.mistake("one maximum for all rows")
def _(x: Any) -> Any:
    """You subtract the largest score of the whole tensor. A row far below it turns into
    exp(-1300) = 0 everywhere, and 0 / 0 is NaN. Each row needs its own maximum: `x.max(-1,
    keepdim=True).values`."""
    return _ratio((x - x.max()).exp())


@softmax.mistake("softmax over columns", numbers=_sums)
def _(x: Any) -> Any:
    """Your first column sums to {column:.3f} and your first row to {row:.3f}. It is the row
    that must sum to 1: each query shares out its attention over the keys, which lie along the
    last axis, `dim=-1`."""
    return x.softmax(-2)


@softmax.mistake("softmax over the first axis", numbers=_sums)
def _(x: Any) -> Any:
    """You normalise along axis 0. With more than two axes that is the batch: the weights of
    unrelated texts sum to 1. Your first row sums to {row:.3f}. Use `dim=-1`."""
    return x.softmax(0)


@softmax.mistake("axis 1 in place of the last", numbers=_sums)
def _(x: Any) -> Any:
    """Axis 1 is the last one of a matrix, but not of a batch of matrices. There your first row
    sums to {row:.3f}. Count from the end: `dim=-1`."""
    return x.softmax(1)


@softmax.mistake("softmax over everything", numbers=_sums)
def _(x: Any) -> Any:
    """All your weights together sum to {all:.3f}, but each row should: your first one sums to
    {row:.3f}. Sum along the last axis only, `x.sum(-1, keepdim=True)`."""
    return x.flatten().softmax(0).view_as(x)


@softmax.mistake("keepdim forgotten", numbers=_sums)
def _(x: Any) -> Any:
    """Without `keepdim=True` the sums lose their axis, and broadcasting lays them along the
    wrong one: column j is divided by the sum of row j. Your first row sums to {row:.3f}.
    Nothing complains, as the matrix is square."""
    return (e := (x - x.amax(-1, keepdim=True)).exp()) / e.sum(-1)


@softmax.mistake("powers of two")
def _(x: Any) -> Any:
    """You raise 2, not e, to the scores. The rows still sum to 1, but are flatter than they
    should be, as if all scores were multiplied by ln 2 = 0.69. Use `torch.exp`."""
    return _ratio((x - x.amax(-1, keepdim=True)).exp2())


# the mask

causal_mask = Exercise(
    "causal_mask",
    task="causal_mask(T) returns booleans of shape (T, T): True where row may look at column.",
    reference=right_mask,
    probes=lambda: {f"T = {T}": (T,) for T in (4, 1, 7)},
    outputs=("mask",),
)


@causal_mask.mistake("mask inverted", source="https://github.com/rasbt/LLMs-from-scratch/pull/1062")
def _(T: Any) -> Any:
    """Your mask is True where a position must not look. Here, as in torch's
    `scaled_dot_product_attention`, True means 'may attend' (`nn.MultiheadAttention` means the
    opposite). Used like this, the model reads the future and nothing else. Mend it by `~`."""
    return ~right_mask(T)


@causal_mask.mistake("upper triangle")
def _(T: Any) -> Any:
    """You kept the triangle above the diagonal: row i sees what comes after i. Rows are queries
    and columns keys, so the past is the lower triangle, `torch.tril`."""
    return right_mask(T).T


@causal_mask.mistake("diagonal hidden")
def _(T: Any) -> Any:
    """In your mask position 0 sees nothing at all, since a position cannot see itself. A row of
    hidden scores becomes NaN in the softmax. The token at a position is known there (what is
    predicted is the next one), so the diagonal belongs to the visible part."""
    return right_mask(T).tril(-1)


@causal_mask.mistake("one step into the future")
def _(T: Any) -> Any:
    """Row i of your mask sees column i + 1 as well, which is the very token that it shall
    predict. The loss of such a model falls to nearly 0, and its text is garbage. Compare with
    `<=`, or use `tril` with `diagonal=0`."""
    return torch.ones(T, T).tril(1).bool()


@causal_mask.mistake("ones and zeros in place of booleans")
def _(T: Any) -> Any:
    """The triangle is right, but it holds the numbers 1 and 0. `~` and `masked_fill` need
    booleans: add `.bool()`, or `dtype=torch.bool` where the ones are made."""
    return torch.ones(T, T).tril()


@causal_mask.mistake("minus infinities in place of booleans")
def _(T: Any) -> Any:
    """This is a mask to add to the scores: 0 where visible, minus infinity where not. It is a
    good way too, but here booleans are asked for, True where visible: `mask == 0`."""
    return torch.zeros(T, T).masked_fill(~right_mask(T), -INF)


# attention


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    factor: Callable[[Tensor], float] = lambda q: q.shape[-1] ** -0.5,
    axis: int = -1,
    fill: float = -INF,
    invert: bool = False,
    swap: bool = False,
    after: bool = False,
    exp: Callable[[Tensor, int], Tensor] = torch.softmax,
) -> tuple[Tensor, Tensor]:
    """Attention with one screw turned."""
    q, k = (k, q) if swap else (q, k)
    scores = q @ k.transpose(-2, -1) * factor(q)
    hidden = torch.zeros_like(scores).bool() if mask is None else ~mask ^ invert
    weights = exp(scores if after else scores.masked_fill(hidden, fill), axis)
    weights = weights.masked_fill(hidden, 0.0) if after else weights
    return weights @ v, weights


def _spread(_: Any, q: Tensor, k: Tensor, *rest: Any) -> dict[str, Any]:
    raw = q @ k.transpose(-2, -1)
    D, spread = q.shape[-1], raw.std().item()
    return {"D": D, "raw": spread, "scaled": spread / D**0.5}


def _seen(output: tuple[Tensor, Tensor], *inputs: Tensor) -> dict[str, Any]:
    weights, mask = output[1], inputs[3]
    hidden = weights.masked_fill(mask, 0.0).sum((-2, -1)) / len(mask)
    return {"future": hidden.max().item(), "row": weights.sum(-1).flatten()[0].item()}


def _row_sums(output: tuple[Tensor, Tensor], *_: Any) -> dict[str, Any]:
    return {"row": output[1].sum(-1).flatten()[0].item()}


def _attention_probes() -> Probes:
    q, k, v = (normal(3, 5, 16, seed=seed) for seed in (1, 2, 3))
    scattered = torch.rand(5, 5, generator=torch.Generator().manual_seed(4)) > 0.5
    # Whole numbers, so that the huge scores are exact and rounding cannot look like a mistake.
    huge = [(300 * x).round() for x in (q, k)]
    return {
        "three texts of five positions": (q, k, v),
        "the same with the causal mask": (q, k, v, right_mask(5)),
        "a mask with holes": (q, k, v, scattered | torch.eye(5).bool()),
        "huge scores": (*huge, v, right_mask(5)),
    }


attention = Exercise(
    "attention",
    task="attention(q, k, v, mask=None, scale=None) returns (out, weights), or out alone. Shapes "
    "(B, T, D); the mask is True where a query may attend to a key.",
    reference=right_attention,
    probes=_attention_probes,
    outputs=("out", "weights"),
)


@attention.mistake("not divided by sqrt(D)", numbers=_spread)
def _(*inputs: Any) -> Any:
    """Your scores have a spread of {raw:.2f}; divided by sqrt({D}) it would be {scaled:.2f}. A
    dot product of D numbers grows like sqrt(D). With large scores the softmax puts nearly all
    weight on one position, and its gradient dies."""
    return _attend(*inputs, factor=lambda q: 1.0)


@attention.mistake("multiplied by sqrt(D)", numbers=_spread)
def _(*inputs: Any) -> Any:
    """You multiply the scores by sqrt({D}) where you should divide: their spread is not
    {scaled:.2f} but {D} times that. The weights are all but 0 and 1."""
    return _attend(*inputs, factor=lambda q: q.shape[-1] ** 0.5)


@attention.mistake("divided by D, not by its root", numbers=_spread)
def _(*inputs: Any) -> Any:
    """You divide by D = {D}. The spread of the scores grows only like sqrt(D), so dividing by D
    makes them too small, and every position gets nearly the same weight."""
    return _attend(*inputs, factor=lambda q: 1 / q.shape[-1])


@attention.mistake("divided by the root of the length", numbers=_spread)
def _(*inputs: Any) -> Any:
    """You divide by the root of the number of positions (axis -2). What makes the scores grow
    is the number of products that are added: the head size D = {D}, `q.shape[-1]`."""
    return _attend(*inputs, factor=lambda q: q.shape[-2] ** -0.5)


@attention.mistake("softmax over the queries", numbers=_row_sums)
def _(*inputs: Any) -> Any:
    """The softmax runs along the wrong axis: your first row of weights sums to {row:.3f}, not
    to 1. Each query shares out its attention over the keys, the last axis, `dim=-1`."""
    return _attend(*inputs, axis=-2)


@attention.mistake("softmax over the batch", numbers=_row_sums)
def _(*inputs: Any) -> Any:
    """The softmax runs along axis 0, the batch: texts that have nothing to do with each other
    compete. Your first row of weights sums to {row:.3f}, not to 1. Use `dim=-1`."""
    return _attend(*inputs, axis=0)


@attention.mistake("mask ignored", numbers=_seen)
def _(q: Any, k: Any, v: Any, *mask: Any) -> Any:
    """Without a mask your function is right, but with one it answers the same: the worst of the
    texts spends {future:.0%} of its attention on positions that the mask hides. Fill the hidden
    scores with minus infinity before the softmax."""
    return right_attention(q, k, v)


@attention.mistake(
    "mask inverted", numbers=_seen, source="https://github.com/rasbt/LLMs-from-scratch/pull/1062"
)
def _(*inputs: Any) -> Any:
    """You hide what may be seen and show what must be hidden. The worst of the texts spends
    {future:.0%} of its attention on hidden positions (NaN: a row with nothing left to see).
    True means 'may attend', so it is `masked_fill(~mask, ...)`."""
    return _attend(*inputs, invert=True)


@attention.mistake("mask after the softmax", numbers=_seen)
def _(*inputs: Any) -> Any:
    """You set the hidden weights to 0 after the softmax. The rows no longer sum to 1 (your
    first one sums to {row:.3f}), and the hidden scores have still taken part in the division,
    so the past depends on the future. Mask the scores first."""
    return _attend(*inputs, after=True)


@attention.mistake("masked with 0", numbers=_seen)
def _(*inputs: Any) -> Any:
    """You set the hidden scores to 0. But exp(0) is 1, not 0: a score of 0 is a middling score.
    The worst of the texts still spends {future:.0%} of its attention on hidden positions. The
    score whose exponential is 0 is minus infinity."""
    return _attend(*inputs, fill=0.0)


@attention.mistake("a mask value that is not low enough", numbers=_seen)
def _(*inputs: Any) -> Any:
    """You fill the hidden scores with -10,000. With small scores that works, but here visible
    ones lie below it, and the hidden ones win: the worst of the texts spends {future:.0%} of
    its attention on them. Minus infinity is below every score."""
    return _attend(*inputs, fill=-1e4)


@attention.mistake("q and k swapped")
def _(*inputs: Any) -> Any:
    """You computed k @ q^T: row i holds the scores that the keys give to position i. Rows must
    be queries, q @ k^T, since each query's row is what the softmax shares out."""
    return _attend(*inputs, swap=True)


@attention.mistake("softmax forgotten", numbers=_row_sums)
def _(*inputs: Any) -> Any:
    """Your weights are the bare scores: the first row sums to {row:.3f}. The softmax makes them
    positive and lets each row sum to 1."""
    return _attend(*inputs, exp=lambda scores, axis: scores)


@attention.mistake("softmax that overflows")
def _(*inputs: Any) -> Any:
    """With small scores your function is right. With huge scores exp gives infinity, and
    infinity over infinity is NaN. Subtract each row's maximum first, or use torch's softmax,
    which does."""
    return _attend(*inputs, exp=lambda scores, axis: _ratio(scores.exp(), axis))


# a head


def _run_head(cls: Callable[..., nn.Module], d_model: int, head_dim: int, x: Tensor) -> Tensor:
    head = cls(d_model, head_dim)
    for seed, name in enumerate(("query", "key", "value")):
        layer = getattr(head, name, None)
        if not isinstance(layer, nn.Linear):
            raise ValueError(f"a head needs nn.Linear layers query, key, value; {name} is {layer}")
        with torch.no_grad():
            layer.weight.copy_(normal(head_dim, d_model, seed=seed) * 2 * d_model**-0.5)
            if layer.bias is not None:
                layer.bias.zero_()
    return head(x)


class _BrokenHead(Head):
    """A head with one screw turned: which layer serves as which, mask, scale, way to attend."""

    def __init__(
        self, d_model: int, head_dim: int, order: str = "qkv", mask: bool = True, **words: Any
    ) -> None:
        super().__init__(d_model, head_dim)
        self.order, self.mask, self.words = order, mask, words

    def forward(self, x: Tensor) -> Tensor:
        layers = {"q": self.query, "k": self.key, "v": self.value}
        q, k, v = (layers[letter](x) for letter in self.order)
        return _attend(q, k, v, right_mask(x.shape[1]) if self.mask else None, **self.words)[0]


head = Exercise(
    "head",
    task="A class Head(d_model, head_dim), an nn.Module with nn.Linear layers query, key and "
    "value; its forward takes x (B, T, d_model) and returns causal attention, (B, T, head_dim).",
    reference=Head,
    probes=lambda: {
        "width 24, head size 6": (24, 6, normal(2, 5, 24, seed=5)),
        "width 8, head size 8": (8, 8, normal(1, 7, 8, seed=6)),
    },
    outputs=("out",),
    run=_run_head,
)


@head.mistake(
    "scaled by d_model",
    numbers=lambda out, C, D, x: {"C": C, "D": D, "ratio": (C / D) ** 0.5},
    source="https://github.com/karpathy/ng-video-lecture/pull/6",
)
def _(C: int, D: int) -> nn.Module:
    """You divide by the root of the model's width, {C}; queries and keys have the head's size,
    {D}. Your scores are {ratio:.2f} times too small, and the more heads, the smaller: every
    position gets nearly the same weight."""
    return _BrokenHead(C, D, factor=lambda q: C**-0.5)


@head.mistake("not divided by sqrt(D)", numbers=lambda out, C, D, x: {"D": D, "root": D**0.5})
def _(C: int, D: int) -> nn.Module:
    """The scores go into the softmax as they are. Divide them by the root of the head size,
    sqrt({D}) = {root:.2f}."""
    return _BrokenHead(C, D, factor=lambda q: 1.0)


@head.mistake("no causal mask")
def _(C: int, D: int) -> nn.Module:
    """Each position looks at all others, those after it included. For a model that predicts the
    next token this is a look at the answer."""
    return _BrokenHead(C, D, mask=False)


@head.mistake("mask inverted", source="https://github.com/rasbt/LLMs-from-scratch/pull/1062")
def _(C: int, D: int) -> nn.Module:
    """Each position sees only what comes after it, and the last one nothing, hence NaN. True
    means 'may attend'."""
    return _BrokenHead(C, D, invert=True)


@head.mistake("query and key swapped")
def _(C: int, D: int) -> nn.Module:
    """The query layer makes your keys, and the key layer your queries. Such a head can learn
    the same, but with these weights it asks what it should answer."""
    return _BrokenHead(C, D, order="kqv")


@head.mistake("values are the keys")
def _(C: int, D: int) -> nn.Module:
    """You mix the keys, not the values. The key says what a position can be found by, the value
    what it hands over: the head needs both."""
    return _BrokenHead(C, D, order="qkk")


@head.mistake("softmax over the queries")
def _(C: int, D: int) -> nn.Module:
    """The softmax runs along the queries (axis -2). Each query must share out its own
    attention, along the keys: `dim=-1`."""
    return _BrokenHead(C, D, axis=-2)
