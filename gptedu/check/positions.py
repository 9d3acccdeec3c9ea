"""Exercises of chapter 2: lookup by a product, nearest rows, sinusoids, rotary positions.

A probe must tell all mistakes apart. So rows differ in length, no two axes have the same size, and
one text starts at position 7, as it does when a model goes on writing.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gptedu.check.exercise import Exercise, normal
from gptedu.embedding import sinusoids as right_sinusoids
from gptedu.rope import rotate as turn
from gptedu.rope import rotation_angles

# embed

embed = Exercise(
    "embed",
    task="embed(ids, table) returns the row of table (V, C) for each of ids (B, T): (B, T, C).",
    reference=lambda ids, table: table[ids],
    probes=lambda: {
        "two texts of four ids": (torch.tensor([[3, 1, 4, 1], [5, 0, 2, 2]]), normal(9, 6)),
        "one text, a larger table": (torch.tensor([[0, 7, 1, 8, 2]]), normal(30, 12, seed=1)),
    },
    outputs=("vectors",),
)


def _first(_: Any, ids: Tensor, table: Tensor) -> dict[str, Any]:
    V, C = table.shape
    row = table[ids[0, 0]]
    return {"id": ids[0, 0].item(), "V": V, "C": C, "root": C**0.5, "length": row.norm().item()}


@embed.mistake("rows counted from 1", numbers=_first)
def _(ids: Any, table: Any) -> Any:
    """The first id is {id}, and you take row {id} as if rows were counted from 1. Ids start at 0,
    and so do rows: id 0 is the first. (In yours it is the last, since Python counts -1 from the
    end, and nothing complains.)"""
    return table[ids - 1]


@embed.mistake("columns in place of rows", numbers=_first)
def _(ids: Any, table: Any) -> Any:
    """You take column {id} of the table, which has {V} numbers, one from each token. A token's
    vector is its row, {C} numbers. With a square table even the shape would look right."""
    return table.T[ids]


@embed.mistake("the id in place of the 1", numbers=_first)
def _(ids: Any, table: Any) -> Any:
    """Your vectors are as many times too long as their id says; for id 0 they are zero. In a
    one-hot vector stands a 1, whatever the id: {id} says where it stands, not how large it is."""
    return ids[..., None] * table[ids]


@embed.mistake("the text added up")
def _(ids: Any, table: Any) -> Any:
    """You return one vector for each text, the sum over its positions: a bag of tokens. Each
    position keeps its own vector; give the one-hot vectors the last axis, (B, T, V)."""
    return table[ids].sum(1)


@embed.mistake("multiplied by the root of C", numbers=_first)
def _(ids: Any, table: Any) -> Any:
    """Your vectors are {root:.2f} times as long as the rows. The first Transformer did multiply
    its embedding by sqrt(C), so that added positions would not drown it; a GPT takes the row as it
    is, and so does this exercise."""
    return table[ids] * table.shape[1] ** 0.5


@embed.mistake("scaled to length 1", numbers=_first)
def _(ids: Any, table: Any) -> Any:
    """All your vectors have length 1. The first row has length {length:.2f}, and training may use
    that, too: the lookup changes nothing. Scale only to compare directions, as a cosine does."""
    return F.normalize(table[ids], dim=-1)


# nearest


def _nearest(
    table: Tensor,
    i: int,
    k: int,
    score: Callable[[Tensor, Tensor], Tensor] = lambda table, row: F.cosine_similarity(table, row),
) -> Tensor:
    scores = score(table, table[i : i + 1]).clone()
    scores[i] = -torch.inf
    return scores.topk(k).indices


nearest = Exercise(
    "nearest",
    task="nearest(table, i, k) returns the ids of the k rows of table (V, C) whose cosine with row "
    "i is largest, the nearest first, row i itself left out.",
    reference=_nearest,
    probes=lambda: {
        label: (normal(12, 3, seed=seed) * torch.linspace(3, 0.3, 12)[:, None], i, k)
        for label, seed, i, k in (("row 4 of twelve", 1, 4, 4), ("row 0 of twelve", 2, 0, 5))
    },
    outputs=("ids",),
)


def _winner(output: Tensor, table: Tensor, i: int, k: int) -> dict[str, Any]:
    """The first place where the reader's ids differ, and the two rows that meet there."""
    right = _nearest(table, i, k)
    at = int((output != right).int().argmax())
    mine, best = int(output[at]), int(right[at])
    cosines = F.cosine_similarity(table, table[i : i + 1])
    return {
        "at": at,
        "i": i,
        "mine": mine,
        "best": best,
        "cosine": cosines[mine].item(),
        "largest": cosines[best].item(),
        "long": table[mine].norm().item(),
        "short": table[best].norm().item(),
    }


@nearest.mistake("dot product in place of the cosine", numbers=_winner)
def _(table: Any, i: Any, k: Any) -> Any:
    """At place {at} you have row {mine}, with a cosine of {cosine:.2f}; row {best} has
    {largest:.2f}. You compare dot products, and row {mine} wins by its length, {long:.2f} against
    {short:.2f}. Divide by the lengths of both rows."""
    return _nearest(table, i, k, lambda table, row: table @ row[0])


@nearest.mistake("distance in place of the cosine", numbers=_winner)
def _(table: Any, i: Any, k: Any) -> Any:
    """At place {at} you have row {mine}, whose end lies closer to that of row {i}. But its cosine
    is {cosine:.2f}, while row {best} has {largest:.2f}. A cosine compares directions; two rows
    that point the same way are alike, however different their lengths."""
    return _nearest(table, i, k, lambda table, row: -(table - row).norm(dim=1))


@nearest.mistake("itself among its neighbours", numbers=_winner)
def _(table: Any, i: Any, k: Any) -> Any:
    """Your first neighbour of row {i} is row {mine}: everything is most like itself, with a
    cosine of 1. Set its own cosine to minus infinity before you choose."""
    return F.cosine_similarity(table, table[i : i + 1]).topk(k).indices


@nearest.mistake("the farthest first", numbers=_winner)
def _(table: Any, i: Any, k: Any) -> Any:
    """Your first is row {mine}, whose cosine of {cosine:.2f} is the smallest there is. Sort from
    the largest down: `descending=True`, or `topk`."""
    return F.cosine_similarity(table, table[i : i + 1]).argsort()[:k]


@nearest.mistake("ids that moved up", numbers=_winner)
def _(table: Any, i: Any, k: Any) -> Any:
    """You took row {i} out and then searched, so every row behind it moved up by one, and its id
    is one too small. Leave the row where it is, and set its cosine to minus infinity."""
    others = torch.cat([table[:i], table[i + 1 :]])
    return F.cosine_similarity(others, table[i : i + 1]).topk(k).indices


@nearest.mistake("opposites as neighbours")
def _(table: Any, i: Any, k: Any) -> Any:
    """You compare the sizes of the cosines without their signs, so a row that points the opposite
    way counts as near. A cosine of -0.9 is as far away as -0.9 says."""
    return _nearest(table, i, k, lambda table, row: F.cosine_similarity(table, row).abs())


# sinusoids


def _waves(
    T: int,
    C: int,
    *,
    start: int = 0,
    exponent: Callable[[Tensor], Tensor] = lambda i: -2 * i,
    unit: float = 1.0,
    join: Callable[[Tensor, Tensor], Tensor] = lambda a, b: torch.stack((a, b), -1).flatten(1),
) -> Tensor:
    """Sinusoids with one screw turned."""
    position = torch.arange(start, start + T)[:, None]
    angle = position * 10000.0 ** (exponent(torch.arange(C // 2)) / C) * unit
    return join(angle.sin(), angle.cos())


sinusoids = Exercise(
    "sinusoids",
    task="sinusoids(T, C), C even, returns (T, C): in columns 2i and 2i + 1 the sine and the "
    "cosine of t / 10000^(2i/C), positions t from 0.",
    reference=right_sinusoids,
    probes=lambda: {"seven positions of eight": (7, 8), "five of twelve": (5, 12)},
    outputs=("table",),
)


@sinusoids.mistake("positions from 1", numbers=lambda out, T, C: {"first": out[0, 0].item()})
def _(T: int, C: int) -> Any:
    """Your table begins with {first:.2f}, the sine of 1. Position 0 comes first: all its sines
    are 0 and all its cosines 1. A model with your table works, but not with weights that were
    trained on the other one."""
    return _waves(T, C, start=1)


@sinusoids.mistake("all sines, then all cosines")
def _(T: int, C: int) -> Any:
    """You put the sines into the first half of the columns and the cosines into the second. The
    numbers are right, in another order: much code does so, and a model that was trained that way
    does not mind. The formula alternates: sine, cosine, sine, cosine."""
    return _waves(T, C, join=lambda a, b: torch.cat((a, b), -1))


@sinusoids.mistake("sine and cosine swapped", numbers=lambda out, T, C: {"first": out[0, 0].item()})
def _(T: int, C: int) -> Any:
    """Your first number is {first:.0f}, the cosine of 0. The even columns, 0, 2, 4 and so on, hold
    the sines; the odd ones the cosines."""
    return _waves(T, C, join=lambda a, b: torch.stack((b, a), -1).flatten(1))


@sinusoids.mistake("an exponent without its 2", numbers=lambda out, T, C: {"last": C // 2 - 1})
def _(T: int, C: int) -> Any:
    """The exponent is 2i/C, where i counts the pairs, 0 to {last}. Yours is i/C, so it runs only
    half of its way: your slowest wave turns about a hundred times faster than it should."""
    return _waves(T, C, exponent=lambda i: -i)


@sinusoids.mistake("a rate for each column")
def _(T: int, C: int) -> Any:
    """Your cosines turn at other rates than the sines beside them: you count the rate by columns.
    A sine and a cosine of one rate are the two coordinates of one hand of a clock; apart from each
    other they say nothing about its angle. Use 2i for both, `i = column // 2`."""
    position, column = torch.arange(T)[:, None], torch.arange(C)
    angle = position * 10000.0 ** (-column / C)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())


@sinusoids.mistake("multiplied where it should divide")
def _(T: int, C: int) -> Any:
    """You multiply the position by 10000^(2i/C); the formula divides by it. Waves that are ten
    thousand times too fast look like noise: neighbours have nothing in common."""
    return _waves(T, C, exponent=lambda i: 2 * i)


@sinusoids.mistake("degrees")
def _(T: int, C: int) -> Any:
    """Your angles are degrees. `torch.sin` takes radians, and so does the formula: the fastest
    wave turns once in 2 pi, about six positions, not in 360."""
    return _waves(T, C, unit=torch.pi / 180)


# rotate


def _turn(
    x: Tensor,
    positions: Tensor,
    base: float = 10000.0,
    *,
    join: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Tensor:
    """Both halves by a formula of one's own: join(a, b, cos, sin)."""
    angle = rotation_angles(positions, x.shape[-1], base)
    a, b = x.chunk(2, -1)
    return torch.cat(join(a, b, angle.cos(), angle.sin()), -1)


def _rotated(x: Tensor, positions: Tensor, base: float = 10000.0, *, sign: int = 1) -> Tensor:
    angle = rotation_angles(positions, x.shape[-1], base)
    return turn(x, angle.cos(), sign * angle.sin())


rotate = Exercise(
    "rotate",
    task="rotate(x, positions, base=10000.0) turns the pairs (x_i, x_(i + D/2)) of x (B, H, T, D), "
    "D even, by the angles positions * base^(-2i/D); positions (T,).",
    reference=_rotated,
    probes=lambda: {
        "positions 0 to 4": (normal(2, 3, 5, 8), torch.arange(5)),
        "positions 7 to 9": (normal(1, 2, 3, 12, seed=1), torch.arange(7, 10)),
        "another base": (normal(1, 1, 4, 6, seed=2), torch.tensor([5, 0, 2, 9]), 50.0),
    },
)


def _lengths(output: Tensor, x: Tensor, positions: Tensor, *base: Any) -> dict[str, Any]:
    """Of the vector that changed its length most."""
    before, after = x.norm(dim=-1).flatten(), output.norm(dim=-1).flatten()
    i = (before - after).abs().argmax()
    return {"before": before[i].item(), "after": after[i].item(), "D": x.shape[-1]}


def _places(output: Tensor, x: Tensor, positions: Tensor, *base: Any) -> dict[str, Any]:
    return {"first": positions[0].item(), "D": x.shape[-1], "half": x.shape[-1] // 2}


@rotate.mistake(
    "neighbours paired",
    numbers=_places,
    source="https://github.com/labmlai/annotated_deep_learning_paper_implementations/pull/265",
)
def _(x: Any, positions: Any, *base: Any) -> Any:
    """You pair neighbours, number 0 with number 1, as the paper does. Here number 0 belongs to
    number {half}, half of D = {D} away, as in the checkpoints of the Llama family. Either works
    when a model is trained with it. Loading weights of one kind into code of the other gives wrong
    scores and no error."""
    order = torch.arange(x.shape[-1]).view(-1, 2).T.flatten()
    return _rotated(x[..., order], positions, *base)[..., order.argsort()]


@rotate.mistake("turned the other way")
def _(x: Any, positions: Any, *base: Any) -> Any:
    """You turn by minus the angle. Queries and keys turned like this still agree about distances,
    only mirrored, so a model trained with it works, and one trained with the other does not. The
    first half becomes a cos - b sin, the second a sin + b cos."""
    return _rotated(x, positions, *base, sign=-1)


@rotate.mistake("a minus sign is missing", numbers=_lengths)
def _(x: Any, positions: Any, *base: Any) -> Any:
    """A turn keeps lengths. One of your vectors went from {before:.2f} to {after:.2f}: you add
    where the first half subtracts. It is a cos - b sin and a sin + b cos."""
    return _turn(x, positions, *base, join=lambda a, b, c, s: (a * c + b * s, a * s + b * c))


@rotate.mistake("the second half uses the new first half", numbers=_lengths)
def _(x: Any, positions: Any, *base: Any) -> Any:
    """One of your vectors went from length {before:.2f} to {after:.2f}; a turn keeps lengths. You
    overwrite the first half and then use it to make the second. Compute both from the old
    numbers."""
    return _turn(x, positions, *base, join=lambda a, b, c, s: (n := a * c - b * s, n * s + b * c))


@rotate.mistake("one half left as it was", numbers=_lengths)
def _(x: Any, positions: Any, *base: Any) -> Any:
    """You change the first half and hand the second on as it was: one of your vectors went from
    length {before:.2f} to {after:.2f}. Both numbers of a pair take part in a turn."""
    return _turn(x, positions, *base, join=lambda a, b, c, s: (a * c - b * s, b))


@rotate.mistake("angles in another order than the pairs", numbers=_lengths)
def _(x: Any, positions: Any, *base: Any) -> Any:
    """You pair number i with i + D/2, but lay out the angles as if neighbours were pairs: 0, 0,
    1, 1, and so on. So the two numbers of a pair turn by different angles, and one of your vectors
    went from length {before:.2f} to {after:.2f}. Repeat the whole row of angles instead:
    `cat((angles, angles), -1)`."""
    angle = rotation_angles(positions, x.shape[-1], *base).repeat_interleave(2, -1)
    a, b = x.chunk(2, -1)
    return x * angle.cos() + torch.cat((-b, a), -1) * angle.sin()


@rotate.mistake("an exponent without its 2", numbers=_places)
def _(x: Any, positions: Any, base: float = 10000.0) -> Any:
    """The exponent is -2i/D, where i counts the {half} pairs. Yours is -i/D: it runs only half of
    its way, and the slow pairs turn too fast to tell far from near."""
    return _rotated(x, positions, base**0.5)


@rotate.mistake("base left out", numbers=lambda out, x, positions, *base: {"base": base[0]})
def _(x: Any, positions: Any, *base: Any) -> Any:
    """You turn with the base 10,000 whatever the caller says, and here it says {base:.0f}. Models
    for long texts are trained with a larger base, and their weights fit no other. Hand `base`
    on."""
    return _rotated(x, positions)


@rotate.mistake("one angle for all pairs")
def _(x: Any, positions: Any, *base: Any) -> Any:
    """All your pairs turn at the same rate, one radian a position. After six positions they are
    nearly where they began, and the score cannot tell 6 from 0. Each pair has a rate of its own,
    base^(-2i/D)."""
    return _rotated(x, positions, 1.0)


@rotate.mistake(
    "positions restart at 0",
    numbers=_places,
    source="https://github.com/ml-explore/mlx-lm/pull/93",
)
def _(x: Any, positions: Any, *base: Any) -> Any:
    """You count 0, 1, 2 yourself; `positions` says that this text starts at {first}. It does so
    whenever a model goes on writing after a text that it has read already, and then every distance
    to the past is wrong."""
    return _rotated(x, torch.arange(len(positions)), *base)


@rotate.mistake("positions from 1")
def _(x: Any, positions: Any, *base: Any) -> Any:
    """Your vector at position 0 has been turned, by one step. Distances are right all the same, so
    no loss would show it; but a cache or a checkpoint that starts at 0 would not fit."""
    return _rotated(x, positions + 1, *base)
