"""Exercises of chapter 4: heads cut apart and joined, many heads at once, what each one writes, and
heads that share their keys.

Each cut is a view and an order of axes, so a mistake is one of the two changed. The probes count up
where a cut is asked for: number 213 is column 3 of position 1 of text 2, and shows where it went.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gptedu.attention import attention as right_attention
from gptedu.attention import causal_mask
from gptedu.check.exercise import Exercise, normal
from gptedu.multihead import merge_heads as right_merge
from gptedu.multihead import repeat_heads
from gptedu.multihead import split_heads as right_split

# threads in which the cut was discussed, and found wrong
SPLIT = "https://github.com/harvardnlp/annotated-transformer/issues/118"
JOIN = "https://github.com/649453932/Chinese-Text-Classification-Pytorch/issues/10"


def _counted(B: int, T: int, C: int) -> Tensor:
    """Text, position, column as the digits of one number."""
    b, t, c = (torch.arange(1.0, n + 1) for n in (B, T, C))
    return 100 * b[:, None, None] + 10 * t[:, None] + c


def _row(x: Tensor) -> str:
    return " ".join(f"{number:.0f}" for number in x.flatten()[:8])


# split

split_heads = Exercise(
    "split_heads",
    task="split_heads(x, n_head) cuts (B, T, C) into (B, n_head, T, C / n_head): head h of a "
    "position is the h-th stretch of its numbers.",
    reference=right_split,
    probes=lambda: {
        "2 texts of 3 positions, 8 numbers in 2 heads": (_counted(2, 3, 8), 2),
        "4 positions, 9 numbers in 3 heads": (_counted(1, 4, 9), 3),
    },
    outputs=("heads",),
)


def _first_rows(yours: Tensor, x: Tensor, n_head: int) -> dict[str, Any]:
    right = right_split(x, n_head)
    return {
        "yours": _row(yours[0, 0, 1]),
        "right": _row(right[0, 0, 1]),
        "shape": tuple(yours.shape),
        "wanted": tuple(right.shape),
    }


def _cut(x: Tensor, inner: tuple[int, int], order: tuple[int, ...]) -> Tensor:
    """The columns cut in two, then the axes (batch, position, outer, inner) in another order."""
    return x.view(*x.shape[:2], *inner).permute(order)


@split_heads.mistake("view without transpose", numbers=_first_rows, source=SPLIT)
def _(x: Any, H: Any) -> Any:
    """The shape is right, the numbers are not. The second position of your first head holds
    {yours}; it should hold {right}. (Number 121 is column 1 of position 2 of text 1.) `view` never
    moves a number, it only counts again: your first head is the first stretch of the text, cut
    small. Cut the last axis, then `transpose(1, 2)`."""
    B, T, C = x.shape
    return x.view(B, H, T, C // H)


@split_heads.mistake("every H-th number", numbers=_first_rows)
def _(x: Any, H: Any) -> Any:
    """You deal the numbers out like cards: the second position of your first head holds {yours},
    not {right}. (Number 121 is column 1 of position 2 of text 1.) It could be learned as well, but
    `merge_heads` and the weights of other people go by stretches. View as (B, T, H, D), not
    (B, T, D, H)."""
    return _cut(x, (-1, H), (0, 3, 1, 2))


@split_heads.mistake("transpose forgotten", numbers=_first_rows)
def _(x: Any, H: Any) -> Any:
    """Your shape is {shape}, wanted is {wanted}. The cut is right, but heads stand behind
    positions. Attention multiplies along the last two axes, so those must be positions and
    numbers: `transpose(1, 2)`. As it stands, the heads of a position attend to each other."""
    return _cut(x, (H, -1), (0, 1, 2, 3))


@split_heads.mistake("number and size of the heads swapped", numbers=_first_rows)
def _(x: Any, H: Any) -> Any:
    """Your shape is {shape}, wanted is {wanted}: you made heads of the size `n_head`, and as many
    as each should have numbers. The head size is C // n_head."""
    return _cut(x, (-1, H), (0, 2, 1, 3))


# merge

merge_heads = Exercise(
    "merge_heads",
    task="merge_heads(x) undoes the split: (B, H, T, D) becomes (B, T, H D), the heads of a "
    "position side by side.",
    reference=right_merge,
    probes=lambda: {
        "2 texts, 2 heads, 3 positions": (right_split(_counted(2, 3, 8), 2).contiguous(),),
        "3 heads, 4 positions": (right_split(_counted(1, 4, 9), 3).contiguous(),),
    },
    outputs=("merged",),
)


def _first_row(yours: Tensor, x: Tensor) -> dict[str, Any]:
    right = right_merge(x)
    rows = {"yours": _row(yours[0, 0]), "right": _row(right[0, 0])}
    return rows | {"shape": tuple(yours.shape), "wanted": tuple(right.shape)}


@merge_heads.mistake("reshape without transpose", numbers=_first_row, source=JOIN)
def _(x: Any) -> Any:
    """Your first row is {yours}; it should be {right}. (Number 121 is column 1 of position 2 of
    text 1.) `reshape` and `view` read the axes in order, and a head's positions follow each other:
    they join positions, not heads. Your first row now holds positions that it must not see. Bring
    positions forward, `transpose(1, 2)`; then `reshape` or `flatten`, for `view` cannot move."""
    B, H, T, D = x.shape
    return x.reshape(B, T, H * D)


@merge_heads.mistake("heads interleaved", numbers=_first_row)
def _(x: Any) -> Any:
    """Your first row is {yours}; it should be {right}. You take number 0 of each head, then number
    1 of each. A whole head should come before the next: the order of axes is (B, T, H, D)."""
    return x.permute(0, 2, 3, 1).flatten(2)


@merge_heads.mistake("heads added up", numbers=_first_row)
def _(x: Any) -> Any:
    """Your shape is {shape}, wanted is {wanted}: you added the heads up. That sum comes later, in
    the product with W_O, where each has a block of its own. First they stand side by side: here
    nothing is computed, numbers only change their place."""
    return x.sum(1)


# many heads


def _slices(x: Tensor, W: Tensor, H: int) -> Tensor:
    """Each head's projection applied to the head's own columns of the input alone."""
    D = W.shape[1] // H
    parts = [x[..., h : h + D] @ W[h : h + D, h : h + D] for h in range(0, H * D, D)]
    return torch.stack(parts, 1)


def _view(x: Tensor, H: int) -> Tensor:
    B, T, C = x.shape
    return x.view(B, H, T, C // H)


def _hide(scores: Tensor, visible: Tensor, axis: int = -1) -> Tensor:
    return scores.masked_fill(~visible, float("-inf")).softmax(axis)


def _many(
    x: Tensor,
    W_q: Tensor,
    W_k: Tensor,
    W_v: Tensor,
    W_o: Tensor,
    n_head: int,
    *,
    project: Callable[..., Tensor] = lambda x, W, H: right_split(x @ W, H),
    factor: Callable[[int, int], float] = lambda C, D: D**-0.5,
    weigh: Callable[[Tensor, Tensor], Tensor] = _hide,
    merge: Callable[[Tensor], Tensor] = right_merge,
    mix: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
) -> Tensor:
    """Multi-head attention with one screw turned."""
    q, k, v = (project(x, W, n_head) for W in (W_q, W_k, W_v))
    scores = q @ k.mT * factor(x.shape[-1], q.shape[-1])
    return mix(merge(weigh(scores, causal_mask(x.shape[1])) @ v), W_o)


def _width_probe(B: int, T: int, C: int, n_head: int, seed: int) -> tuple[Any, ...]:
    matrices = (2 * normal(C, C, seed=seed + i) * C**-0.5 for i in range(4))
    return (normal(B, T, C, seed=seed + 4), *matrices, n_head)


multihead = Exercise(
    "multihead",
    task="multihead(x, W_q, W_k, W_v, W_o, n_head) is causal attention with several heads: x is "
    "(B, T, C), each matrix (C, C), applied as x @ W; the result is (B, T, C).",
    reference=_many,
    probes=lambda: {
        "3 heads of 4": _width_probe(2, 5, 12, 3, seed=10),
        "2 heads of 8": _width_probe(1, 6, 16, 2, seed=20),
    },
    outputs=("out",),
)


def _unmasked(scores: Tensor, visible: Tensor) -> Tensor:
    return scores.softmax(-1)


def _sizes(out: Tensor, x: Tensor, *rest: Any) -> dict[str, Any]:
    C, H = x.shape[-1], rest[-1]
    late = _many(torch.cat([x[:, :-1], x[:, -1:] + 1], 1), *rest, weigh=_unmasked)
    moved = (late - _many(x, *rest, weigh=_unmasked))[0, 0].abs().max().item()
    return {"C": C, "H": H, "D": C // H, "ratio": H**0.5, "moved": moved}


@multihead.mistake(
    "W_O missing",
    numbers=_sizes,
    source="https://github.com/FareedKhan-dev/train-llm-from-scratch/pull/13",
)
def _(*inputs: Any) -> Any:
    """You return the heads as they stand, side by side. Then the first head can write into the
    first {D} of the {C} numbers only, the second into the next {D}, and so on for ever. W_O lets
    each of the {H} heads write anywhere: `merged @ W_o`."""
    return _many(*inputs, mix=lambda merged, W: merged)


@multihead.mistake("W_O transposed")
def _(*inputs: Any) -> Any:
    """You multiply by the transpose of W_O. `nn.Linear` keeps its matrix transposed, these are
    not: every one of the four is applied as `x @ W`. With a square matrix nothing complains."""
    return _many(*inputs, mix=lambda merged, W: merged @ W.T)


@multihead.mistake(
    "scaled by d_model",
    numbers=_sizes,
    source="https://github.com/karpathy/ng-video-lecture/pull/6",
)
def _(*inputs: Any) -> Any:
    """You divide the scores by the root of the width, {C}. A dot product of one head adds {D}
    terms: divide by sqrt({D}). Your scores are {ratio:.2f} times too small, the root of the number
    of heads, and the heads look about more evenly than they should."""
    return _many(*inputs, factor=lambda C, D: C**-0.5)


@multihead.mistake("not divided by sqrt(D)", numbers=_sizes)
def _(*inputs: Any) -> Any:
    """The scores go into the softmax as they are. Each head's queries and keys have {D} numbers:
    divide by sqrt({D})."""
    return _many(*inputs, factor=lambda C, D: 1.0)


@multihead.mistake("no causal mask", numbers=_sizes)
def _(*inputs: Any) -> Any:
    """Every position sees the whole text. Add 1 to the last position's numbers, and your output at
    position 0 moves by {moved:.2f}; it should not move at all. One mask (T, T) serves all heads."""
    return _many(*inputs, weigh=_unmasked)


@multihead.mistake("mask after the softmax")
def _(*inputs: Any) -> Any:
    """You set the hidden weights to 0 when the softmax has already shared out the attention. The
    future got its part, and the rest of a row no longer sums to 1. Hide before the softmax: minus
    infinity in the *scores*."""
    return _many(*inputs, weigh=lambda scores, visible: scores.softmax(-1) * visible)


@multihead.mistake("mask inverted")
def _(*inputs: Any) -> Any:
    """You hide the past and show the future. `causal_mask` is True where a position *may* look;
    `masked_fill` fills where its mask is True, so it needs `~causal_mask(T)`. (The last position
    has no future and sees nothing at all: hence its NaN.)"""
    return _many(*inputs, weigh=lambda scores, visible: _hide(scores, ~visible))


@multihead.mistake("softmax across the heads", numbers=_sizes)
def _(*inputs: Any) -> Any:
    """The softmax runs along axis 1, and that is the heads: the {H} heads share out one unit for
    each pair of positions. What is asked is that each head shares out its own, over the keys:
    `dim=-1`. (The NaN comes from hidden pairs: minus infinity in every head.)"""
    return _many(*inputs, weigh=lambda scores, visible: _hide(scores, visible, 1))


@multihead.mistake("softmax over the queries")
def _(*inputs: Any) -> Any:
    """The softmax runs down the columns, so later positions take part in the weights of earlier
    ones. Each row is one query that shares out its attention over the keys: `dim=-1`."""
    return _many(*inputs, weigh=lambda scores, visible: _hide(scores, visible, -2))


@multihead.mistake("one wide head", numbers=_sizes)
def _(x: Any, W_q: Any, W_k: Any, W_v: Any, W_o: Any, H: Any) -> Any:
    """You did not split. All {C} numbers of a query meet all {C} of a key, which is one head with
    one softmax. The matrices are the same; what makes {H} heads of them is the cut between
    projection and scores."""
    return _many(x, W_q, W_k, W_v, W_o, 1)


@multihead.mistake("view without transpose", source=SPLIT)
def _(*inputs: Any) -> Any:
    """You split by `view(B, H, T, D)`. That cuts the text, not the rows: the first head gets the
    first part of the text, the last head the rest. As the heads are then merged correctly, the end
    of the text reaches position 0. Split by `view(B, T, H, D).transpose(1, 2)`."""
    return _many(*inputs, project=lambda x, W, H: _view(x @ W, H))


@multihead.mistake("merged without transpose", source=JOIN)
def _(*inputs: Any) -> Any:
    """The heads are right, their joining is not: `reshape` goes along memory, where the positions
    of one head follow each other. Your row 0 holds the first head at several positions, later ones
    among them. Before you join, `transpose(1, 2)`."""
    return _many(*inputs, merge=lambda x: x.reshape(len(x), x.shape[2], -1))


@multihead.mistake(
    "view in and view out",
    source="https://github.com/649453932/Chinese-Text-Classification-Pytorch/issues/53",
)
def _(*inputs: Any) -> Any:
    """You split by `view(B, H, T, D)` and join by a view back. The two undo each other, so nothing
    looks wrong and nothing leaks. But each head reads another part of the text: the end can never
    see the beginning. Cut as (B, T, H, D), then transpose; and back in the opposite order."""
    return _many(
        *inputs,
        project=lambda x, W, H: _view(x @ W, H),
        merge=lambda x: x.reshape(len(x), x.shape[2], -1),
    )


@multihead.mistake(
    "each head sees its own slice of the input",
    numbers=_sizes,
    source="https://github.com/MarcoMeter/episodic-transformer-memory-ppo/pull/22",
)
def _(*inputs: Any) -> Any:
    """You cut x first and project afterwards, so a head sees {D} of the {C} numbers of a position.
    It is the result of the projection that is cut: every head reads all {C}, and makes its own {D}
    out of them. Project, then split."""
    return _many(*inputs, project=_slices)


# what each head writes

head_writes = Exercise(
    "head_writes",
    task="head_writes(heads, W_o): heads (B, H, T, D), W_o (H D, C). Returns (B, H, T, C): what "
    "each head adds to the output. Summed over the heads it is merge_heads(heads) @ W_o.",
    reference=lambda heads, W: heads @ W.view(heads.shape[1], heads.shape[3], -1),
    probes=lambda: {
        "3 heads of 4, width 12": (normal(2, 3, 5, 4, seed=31), normal(12, 12, seed=32)),
        "2 heads of 6, width 10": (normal(1, 2, 4, 6, seed=33), normal(12, 10, seed=34)),
    },
    outputs=("writes",),
)


@head_writes.mistake("every H-th row of W_O")
def _(heads: Any, W: Any) -> Any:
    """You give each head every H-th row of W_O. But `merge_heads` lays whole heads side by side,
    so the first D rows of W_O meet the first head, the next D rows the second. Your sum over the
    heads is not the output."""
    return heads @ W.view(heads.shape[3], heads.shape[1], -1).transpose(0, 1)


@head_writes.mistake("the first block for all")
def _(heads: Any, W: Any) -> Any:
    """All your heads go through the first D rows of W_O. Those belong to the first head; the next
    one has the next D rows, and so on."""
    return heads @ W[: heads.shape[3]]


@head_writes.mistake("added up")
def _(heads: Any, W: Any) -> Any:
    """That is the whole output: the heads are summed already. It is right, and it is what the next
    layer gets. Here the parts are asked for, with an axis of heads, before anyone adds them."""
    return right_merge(heads) @ W


@head_writes.mistake("a share of the whole")
def _(heads: Any, W: Any) -> Any:
    """You split the output evenly among the heads. The sum is right, but each head has its own
    block of W_O and its own answer: multiply each head by its own D rows."""
    share = (right_merge(heads) @ W)[:, None] / heads.shape[1]
    return share.expand(-1, heads.shape[1], -1, -1)


# heads that share their keys

grouped_attention = Exercise(
    "grouped_attention",
    task="grouped_attention(q, k, v): q (B, H, T, D); k and v (B, K, T, D), where K divides H and "
    "each key head serves H / K query heads in a row. Causal; returns (B, H, T, D).",
    reference=lambda q, k, v: _grouped(q, k, v),
    probes=lambda: {
        f"{H} query heads, {K} key heads": tuple(
            normal(2, n, 5, 6, seed=40 + i) for i, n in enumerate((H, K, K))
        )
        for H, K in ((6, 2), (4, 4), (4, 1))
    },
    outputs=("out",),
)


def _tile(x: Tensor, H: int) -> Tensor:
    return x.repeat(1, H // x.shape[1], 1, 1)


def _grouped(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    keys: Callable[[Tensor, int], Tensor] = repeat_heads,
    mask: bool = True,
) -> Tensor:
    H, visible = q.shape[1], causal_mask(q.shape[2]) if mask else None
    return right_attention(q, keys(k, H), keys(v, H), visible)[0]


def _pairing(_: Any, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
    H, K = q.shape[1], k.shape[1]
    names = torch.arange(1.0, K + 1).view(1, K, 1, 1)
    return {"yours": _row(_tile(names, H)), "right": _row(repeat_heads(names, H)), "K": K}


@grouped_attention.mistake(
    "key heads tiled", numbers=_pairing, source="https://github.com/onnx/onnx/pull/7274"
)
def _(*inputs: Any) -> Any:
    """You repeat the heads as a whole. Your query heads are served by the key heads {yours}; they
    should be served by {right}. Trained from scratch it would not matter, but every checkpoint
    with grouped heads has the other order: `repeat_interleave`."""
    return _grouped(*inputs, keys=_tile)


@grouped_attention.mistake("one key head for all", numbers=_pairing)
def _(*inputs: Any) -> Any:
    """All your query heads read the first key head. That is multi-query attention, and {K} - 1 of
    the {K} key heads are there for nothing. (A key head that broadcasts needs no repeating; but
    only where there is just one.)"""
    return _grouped(*inputs, keys=lambda x, H: x[:, :1].expand(-1, H, -1, -1))


@grouped_attention.mistake("groups not joined again")
def _(*inputs: Any) -> Any:
    """The numbers are right, but your answer has five axes: the query heads are still cut into
    groups and members. Whoever comes next counts heads on one axis: `flatten(1, 2)`."""
    return _grouped(*inputs).unflatten(1, (inputs[1].shape[1], -1))


@grouped_attention.mistake("no causal mask")
def _(*inputs: Any) -> Any:
    """The heads are paired rightly, but each position sees the whole text. Sharing keys does not
    change who may look where: the mask (T, T) is the same for all heads."""
    return _grouped(*inputs, mask=False)
