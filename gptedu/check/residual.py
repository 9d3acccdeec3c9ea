"""Exercises of chapter 6: the two norms, a pre-norm block, a stack of blocks, a norm folded away.

Probes of tiny numbers and of a constant row are there because of epsilon: on ordinary numbers it
hides. One probe asks for another epsilon than the rest. No two axes of a probe have the same size,
so that no wrong axis looks like the right one.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gptedu.check.exercise import Exercise, Probes, normal
from gptedu.config import GPTConfig
from gptedu.mlp import MLP
from gptedu.multihead import MultiHeadAttention
from gptedu.norm import LayerNorm
from gptedu.norm import layer_norm as right_layer_norm
from gptedu.norm import rms_norm as right_rms_norm

Axes = int | tuple[int, ...]


# the two norms


def _norm(
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
    eps: float,
    *,
    axes: Axes = -1,
    centre: bool = True,
    correction: int = 0,
    root: Callable[[Tensor, float], Tensor] = lambda variance, eps: (variance + eps).sqrt(),
) -> Tensor:
    """LayerNorm with one screw turned: over which axes, centred, the divisor, epsilon's place."""
    centred = x - x.mean(axes, keepdim=True) if centre else x
    count = x.numel() / x.sum(axes, keepdim=True).numel()
    square = centred.square().sum(axes, keepdim=True) / (count - correction)
    return centred / root(square, eps) * gain + bias


def _outside(variance: Tensor, eps: float) -> Tensor:
    return variance.sqrt() + eps


def _sizes(_: Any, x: Tensor, *rest: Any) -> dict[str, Any]:
    row = x.flatten(0, -2)[0]
    right, C = row.var(correction=0).item(), len(row)
    return {
        "C": C,
        "biased": right,
        "unbiased": right * C / (C - 1),
        "mean": row.mean().item(),
        "rms": row.square().mean().sqrt().item(),
        "length": row.norm().item(),
    }


def _norm_probes(*, with_bias: bool) -> Probes:
    gain, bias = 1 + 0.3 * normal(6, seed=1), normal(6, seed=2)
    # The first row of the last probe is constant: nothing is left of it but epsilon.
    flat = torch.cat([torch.full((1, 6), 2.0), torch.zeros(1, 6), normal(2, 6, seed=5)])
    inputs = {
        "two texts of five positions": 3 * normal(2, 5, 6, seed=3) + 1,
        "tiny numbers": 2e-3 * normal(3, 4, 6, seed=4),
        "a constant row and an empty one": flat[None],
    }
    rest = (gain, bias) if with_bias else (gain,)
    probes: Probes = {label: (x, *rest, 1e-5) for label, x in inputs.items()}
    return probes | {"another epsilon": (0.1 * inputs["two texts of five positions"], *rest, 1e-2)}


layer_norm = Exercise(
    "layer_norm",
    task="layer_norm(x, gain, bias, eps) normalises each position of x (B, T, C) by itself.",
    reference=right_layer_norm,
    probes=lambda: _norm_probes(with_bias=True),
)


@layer_norm.mistake("unbiased variance", numbers=_sizes)
def _(*inputs: Any) -> Any:
    """Your first row has the variance {biased:.3f}; you divide by the root of {unbiased:.3f}, the
    sum over {C} - 1, which is what `var` and `std` do unless told otherwise. That is for guessing a
    population from a sample. Here the {C} numbers are all there is: `correction=0`."""
    return _norm(*inputs, correction=1)


@layer_norm.mistake("epsilon outside the root", numbers=_sizes)
def _(*inputs: Any) -> Any:
    """You add epsilon to the standard deviation, not to the variance. On ordinary numbers nobody
    sees it. On tiny ones sqrt(variance + 1e-5) is at least 0.003, yours only 0.00001, and your
    output comes out too large. Add it under the root."""
    return _norm(*inputs, root=_outside)


@layer_norm.mistake(
    "unbiased, and epsilon outside the root",
    numbers=_sizes,
    source="https://github.com/harvardnlp/annotated-transformer/issues/122",
)
def _(*inputs: Any) -> Any:
    """Two at once, from a well-known tutorial: `std` divides by {C} - 1, and epsilon is added to it
    outside the root. Your model trains all the same. But it is no other library's LayerNorm, and
    weights do not carry over. Take the mean of the squares, add epsilon, then the root."""
    return _norm(*inputs, correction=1, root=_outside)


@layer_norm.mistake("no epsilon")
def _(*inputs: Any) -> Any:
    """A row whose numbers are all equal has the variance 0, and 0 / 0 is NaN. Such rows are real:
    an embedding that starts at zero is one. Add epsilon to the variance, under the root."""
    return _norm(*inputs, root=lambda variance, _: variance.sqrt())


@layer_norm.mistake("divided by the variance", numbers=_sizes)
def _(*inputs: Any) -> Any:
    """You divide by {biased:.3f}, the variance of your first row, and not by its root. A row twice
    as large then comes out half as large. Divide by the standard deviation."""
    return _norm(*inputs, root=lambda variance, eps: variance + eps)


@layer_norm.mistake("mean not subtracted", numbers=_sizes)
def _(*inputs: Any) -> Any:
    """Your first row has the mean {mean:.3f}, and you leave it there: you divide by the root of the
    mean square. That is RMSNorm, with a bias. LayerNorm subtracts the mean first."""
    return _norm(*inputs, centre=False)


@layer_norm.mistake("over the positions")
def _(*inputs: Any) -> Any:
    """You normalise along axis -2: each number is compared with the same number at other positions,
    later ones included, so the future leaks into the past. A position is normalised by itself,
    along the last axis: `dim=-1`."""
    return _norm(*inputs, axes=-2)


@layer_norm.mistake("over the batch")
def _(*inputs: Any) -> Any:
    """You normalise along axis 0. What a text gives now depends on which other texts share its
    batch, and a text alone becomes zeros. This is the way of BatchNorm. Use `dim=-1`."""
    return _norm(*inputs, axes=0)


@layer_norm.mistake("over positions and numbers together")
def _(*inputs: Any) -> Any:
    """One mean and one spread for a whole text: later positions change earlier ones, so the future
    leaks. Each position has its own mean and spread, along the last axis only."""
    return _norm(*inputs, axes=(-2, -1))


@layer_norm.mistake("over everything")
def _(*inputs: Any) -> Any:
    """`x.mean()` without an axis is one number for the whole batch. Then texts depend on each
    other, and a loud position drowns the rest. Use `x.mean(dim=-1, keepdim=True)`."""
    return _norm(*inputs, axes=(-3, -2, -1))


@layer_norm.mistake("gain and bias left out")
def _(x: Any, gain: Any, bias: Any, eps: Any) -> Any:
    """Your numbers have mean 0 and spread 1, and stay so. The gain and the bias, one number for
    each of the C units, let training choose another size: `normal * gain + bias`."""
    return right_layer_norm(x, eps=eps)


rms_norm = Exercise(
    "rms_norm",
    task="rms_norm(x, gain, eps) divides each position of x (B, T, C) by its root mean square.",
    reference=right_rms_norm,
    probes=lambda: _norm_probes(with_bias=False),
)


def _rms(x: Tensor, gain: Tensor, eps: float, **screw: Any) -> Tensor:
    return _norm(x, gain, torch.zeros_like(gain), eps, **{"centre": False, **screw})


@rms_norm.mistake("mean subtracted", numbers=_sizes)
def _(*inputs: Any) -> Any:
    """You subtract the mean, {mean:.3f} in your first row: that is LayerNorm. RMSNorm leaves the
    mean alone, and that is all the difference between them."""
    return _rms(*inputs, centre=True)


@rms_norm.mistake("sum in place of mean", numbers=_sizes)
def _(*inputs: Any) -> Any:
    """You divide by {length:.3f}, the length of the vector; the root mean square is {rms:.3f},
    sqrt({C}) times smaller. Your output has length 1, so the wider the model, the smaller its
    numbers. Take the mean of the squares."""
    return _rms(*inputs, root=lambda mean, eps: (mean * inputs[0].shape[-1] + eps).sqrt())


@rms_norm.mistake("epsilon outside the root", numbers=_sizes)
def _(*inputs: Any) -> Any:
    """You add epsilon to the root mean square, not to the mean square. On tiny numbers it must be
    felt: sqrt(mean square + 1e-5) is at least 0.003, yours can be 0.00001."""
    return _rms(*inputs, root=_outside)


@rms_norm.mistake("no epsilon")
def _(*inputs: Any) -> Any:
    """A row of zeros has the root mean square 0, and 0 / 0 is NaN. Add epsilon to the mean square,
    under the root."""
    return _rms(*inputs, root=lambda square, _: square.sqrt())


@layer_norm.mistake("an epsilon of your own", numbers=lambda out, *given: {"eps": given[-1]})
@rms_norm.mistake("an epsilon of your own", numbers=lambda out, *given: {"eps": given[-1]})
def _(x: Any, *rest: Any) -> Any:
    """You add 1e-5 whatever the caller says, and here it says {eps:g}. Models are trained with
    different epsilons, 1e-5, 1e-6 or 1e-12, and each wants its own: use `eps`."""
    norm: Callable[..., Tensor] = _norm if len(rest) == 3 else _rms
    return norm(x, *rest[:-1], 1e-5)


@rms_norm.mistake("root forgotten", numbers=_sizes)
def _(*inputs: Any) -> Any:
    """You divide by the mean square. In your first row its root is {rms:.3f}. Without the root, a
    row twice as large comes out half as large."""
    return _rms(*inputs, root=lambda square, eps: square + eps)


@rms_norm.mistake("over the positions")
def _(*inputs: Any) -> Any:
    """You take the mean along axis -2, over the positions: a later token changes an earlier one.
    Each position has its own size, along the last axis."""
    return _rms(*inputs, axes=-2)


@rms_norm.mistake("over everything")
def _(*inputs: Any) -> Any:
    """`mean()` without an axis is one number for all texts and positions. Each position has its own
    size: `x.square().mean(dim=-1, keepdim=True)`."""
    return _rms(*inputs, axes=(-3, -2, -1))


@rms_norm.mistake("gain left out")
def _(x: Any, gain: Any, eps: Any) -> Any:
    """The size is right, but the gain, one learned number for each unit, is not applied."""
    return right_rms_norm(x, eps=eps)


# a block, a stack


def _parts(seed: int, C: int = 12, n_head: int = 3) -> tuple[nn.Module, ...]:
    """Attention, its norm, MLP, its norm: with weights large enough to tell everything apart."""
    config = GPTConfig(d_model=C, n_head=n_head, d_ff=2 * C)
    parts = (MultiHeadAttention(config), LayerNorm(C), MLP(config), LayerNorm(C))
    for i, weight in enumerate(p for part in parts for p in part.parameters()):
        noise = normal(*weight.shape, seed=100 * seed + i)
        weight.data = noise * C**-0.5 if weight.ndim == 2 else weight.data + 0.3 * noise
    return parts


def _right_block(x: Any, attention: Any, attention_norm: Any, mlp: Any, mlp_norm: Any) -> Any:
    x = x + attention(attention_norm(x))
    return x + mlp(mlp_norm(x))


pre_norm_block = Exercise(
    "pre_norm_block",
    task="pre_norm_block(x, attention, attention_norm, mlp, mlp_norm) returns the stream (B, T, C) "
    "after a pre-norm block that is made of these four modules.",
    reference=_right_block,
    probes=lambda: {
        "a stream of ordinary size": (normal(2, 5, 12, seed=1), *_parts(1)),
        "a large stream": (20 * normal(1, 4, 12, seed=2), *_parts(2)),
    },
    outputs=("stream",),
)
ISSUE_110 = "https://github.com/harvardnlp/annotated-transformer/issues/110"


def _kept(stream: Tensor, x: Tensor, *_: Any) -> dict[str, Any]:
    def size(x: Tensor) -> float:
        return x.square().mean().sqrt().item()

    return {"before": size(x), "after": size(stream)}


@pre_norm_block.mistake("post-norm in place of pre-norm", numbers=_kept, source=ISSUE_110)
def _(x: Any, attention: Any, attention_norm: Any, mlp: Any, mlp_norm: Any) -> Any:
    """You normalise after the addition, as in the paper of 2017. Then the stream itself goes
    through every norm: it came in with size {before:.2f} and leaves with {after:.2f}. In a pre-norm
    block only what a sublayer reads is normalised; the sum is left alone."""
    x = attention_norm(x + attention(x))
    return mlp_norm(x + mlp(x))


@pre_norm_block.mistake("no residual", numbers=_kept)
def _(x: Any, attention: Any, attention_norm: Any, mlp: Any, mlp_norm: Any) -> Any:
    """Each sublayer replaces the stream where it should add to it: of what came in nothing is left.
    In a deep stack neither the signal nor its gradient would survive. Write `x = x + ...`."""
    return mlp(mlp_norm(attention(attention_norm(x))))


@pre_norm_block.mistake("the residual of the MLP is missing")
def _(x: Any, attention: Any, attention_norm: Any, mlp: Any, mlp_norm: Any) -> Any:
    """Attention adds to the stream, but then the MLP replaces it, and what attention wrote with it.
    Both sublayers add: `return x + mlp(...)`."""
    return mlp(mlp_norm(x + attention(attention_norm(x))))


@pre_norm_block.mistake("the residual of attention is missing")
def _(x: Any, attention: Any, attention_norm: Any, mlp: Any, mlp_norm: Any) -> Any:
    """The MLP adds to the stream, but attention replaced it before. Both sublayers add."""
    x = attention(attention_norm(x))
    return x + mlp(mlp_norm(x))


@pre_norm_block.mistake("the normalised stream is kept", numbers=_kept)
def _(x: Any, attention: Any, attention_norm: Any, mlp: Any, mlp_norm: Any) -> Any:
    """You add to norm(x) where you should add to x: `x = norm(x); x = x + f(x)` is not the same as
    `x = x + f(norm(x))`. Your stream came in with size {before:.2f} and leaves with {after:.2f}.
    The copy that is read is normalised, the stream is not."""
    x = attention_norm(x)
    x = mlp_norm(x + attention(x))
    return x + mlp(x)


@pre_norm_block.mistake("what is written is normalised", source=ISSUE_110)
def _(x: Any, attention: Any, attention_norm: Any, mlp: Any, mlp_norm: Any) -> Any:
    """You normalise what a sublayer gives, not what it takes. Every write then has the same size,
    however unsure the sublayer is, and the sublayer reads a stream that grows with depth. It is
    `f(norm(x))`, not `norm(f(x))`."""
    x = x + attention_norm(attention(x))
    return x + mlp_norm(mlp(x))


@pre_norm_block.mistake("one norm for both")
def _(x: Any, attention: Any, attention_norm: Any, mlp: Any, mlp_norm: Any) -> Any:
    """Both sublayers read through `attention_norm`, and `mlp_norm` learns nothing. Each norm has a
    gain and a bias of its own: what suits attention need not suit the MLP."""
    x = x + attention(attention_norm(x))
    return x + mlp(attention_norm(x))


@pre_norm_block.mistake("no norm")
def _(x: Any, attention: Any, attention_norm: Any, mlp: Any, mlp_norm: Any) -> Any:
    """The sublayers read the stream as it is, however large it has grown. Each should read a
    normalised copy: `attention(attention_norm(x))`."""
    x = x + attention(x)
    return x + mlp(x)


@pre_norm_block.mistake("both read the same stream")
def _(x: Any, attention: Any, attention_norm: Any, mlp: Any, mlp_norm: Any) -> Any:
    """Your MLP does not see what attention just wrote: both read the block's input. Some models do
    this on purpose, as a 'parallel block'. Here the MLP reads the stream after attention: give the
    sum a name, `x = x + attention(...)`, before the MLP reads it."""
    return x + attention(attention_norm(x)) + mlp(mlp_norm(x))


@pre_norm_block.mistake("what attention wrote is dropped")
def _(x: Any, attention: Any, attention_norm: Any, mlp: Any, mlp_norm: Any) -> Any:
    """The MLP reads what attention wrote, but is then added to the block's *input*, so attention's
    own contribution is lost. Add to the stream after attention."""
    return x + mlp(mlp_norm(x + attention(attention_norm(x))))


class _Writer(nn.Module):
    """A block in miniature: it adds what it makes of its normalised input."""

    def __init__(self, seed: int, C: int = 6) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(C, C, seed=seed) * C**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(right_layer_norm(x) @ self.weight)


def _right_stack(x: Any, blocks: Any, final_norm: Any) -> Any:
    for block in blocks:
        x = block(x)
    return final_norm(x)


def _stack_probes() -> Probes:
    norm = LayerNorm(6)
    norm.weight.data = 1 + 0.3 * normal(6, seed=9)
    return {
        "three blocks": (normal(2, 4, 6, seed=1), nn.ModuleList(map(_Writer, (1, 2, 3))), norm),
        "eight blocks": (normal(1, 3, 6, seed=2), nn.ModuleList(map(_Writer, range(8))), norm),
    }


stack = Exercise(
    "stack",
    task="stack(x, blocks, final_norm) runs the stream x (B, T, C) through pre-norm blocks, each "
    "with its residuals inside, and returns what the head reads.",
    reference=_right_stack,
    probes=_stack_probes,
    outputs=("hidden",),
)


@stack.mistake(
    "the stream is added again",
    numbers=lambda out, x, blocks, norm: {"n": len(blocks), "times": 2 ** len(blocks)},
)
def _(x: Any, blocks: Any, final_norm: Any) -> Any:
    """A block returns the stream *with* what it wrote. You add that to the stream, so all that came
    before is doubled each time: after {n} blocks the embedding counts {times} times, and what the
    last block wrote once. The final norm hides the size, and a model trained like this learns, so
    the loss does not tell. Weights trained right would give nonsense. It is `x = block(x)`."""
    for block in blocks:
        x = x + block(x)
    return final_norm(x)


@stack.mistake("no final norm", numbers=_kept)
def _(x: Any, blocks: Any, final_norm: Any) -> Any:
    """In a pre-norm stack nobody normalises the stream itself: it came in with size {before:.2f}.
    The head reads whatever has added up, and the logits grow with depth. One norm stands between
    the last block and the head."""
    return _right_stack(x, blocks, nn.Identity())


@stack.mistake("a norm after every block")
def _(x: Any, blocks: Any, final_norm: Any) -> Any:
    """You apply the final norm inside the loop: the stream is normalised after every block, as in
    post-norm. It is called final since it comes once, after the loop."""
    for block in blocks:
        x = final_norm(block(x))
    return x


@stack.mistake("every block reads the embedding")
def _(x: Any, blocks: Any, final_norm: Any) -> Any:
    """Each block gets the same `x`, and only the last one's answer is used: a stack with the depth
    of one. Hand on what the block returns, `x = block(x)`."""
    for block in blocks:
        y = block(x)
    return final_norm(y)


@stack.mistake("the first block, again and again")
def _(x: Any, blocks: Any, final_norm: Any) -> Any:
    """You run `blocks[0]` every time, so the others never learn. (`[Block()] * n` makes the same
    mistake when the list is built: n names for one block.)"""
    for _ in blocks:
        x = blocks[0](x)
    return final_norm(x)


@stack.mistake("the last block is left out")
def _(x: Any, blocks: Any, final_norm: Any) -> Any:
    """Your loop ends one too early, and the last block never runs. Loop over the blocks themselves,
    `for block in blocks`, and there is nothing to count."""
    return _right_stack(x, blocks[:-1], final_norm)


# a norm folded into the next layer


fold_norm = Exercise(
    "fold_norm",
    task="fold_norm(gain, bias, W, b) returns (W2, b2) so that for the bare norm n, with no gain "
    "and no bias, n(x) @ W2.T + b2 equals (n(x) * gain + bias) @ W.T + b. W is (F, C), as in "
    "nn.Linear.",
    reference=lambda gain, bias, W, b: (W * gain, b + W @ bias),
    probes=lambda: {
        # square, so that the wrong axis fits as well
        "four units": (*normal(2, 4, seed=1), normal(4, 4, seed=2), normal(4, seed=3)),
        "five units": (*normal(2, 5, seed=4), normal(5, 5, seed=5), normal(5, seed=6)),
    },
    outputs=("folded",),
)


@fold_norm.mistake("bias dropped")
def _(gain: Any, bias: Any, W: Any, b: Any) -> Any:
    """W2 is right, but b2 is b: the norm's bias goes through W as well, and W @ bias is the same
    for every input. Add it: `b + W @ bias`."""
    return W * gain, b


@fold_norm.mistake("gain and bias folded together")
def _(gain: Any, bias: Any, W: Any, b: Any) -> Any:
    """You send the bias through W2, which has the gain in it already. The norm's bias is added
    after the gain, so the gain must not touch it: `b + W @ bias`, with the old W."""
    return W * gain, b + (W * gain) @ bias


@fold_norm.mistake("divided by the gain")
def _(gain: Any, bias: Any, W: Any, b: Any) -> Any:
    """You divide by the gain. You are not undoing it but taking it over: what the norm used to
    multiply, the layer must multiply now."""
    return W / gain, b + W @ bias


@fold_norm.mistake("bias not sent through W")
def _(gain: Any, bias: Any, W: Any, b: Any) -> Any:
    """You add the norm's bias to b as it stands, and in a square layer the shapes fit. But it is
    added *before* the layer, so what arrives behind it is `W @ bias`."""
    return W * gain, b + bias


@fold_norm.mistake("gain laid along the rows")
def _(gain: Any, bias: Any, W: Any, b: Any) -> Any:
    """You multiply the rows of W by the gain, and in a square layer the shapes fit. Row i belongs
    to output i. The gain belongs to the inputs, and they are the columns: `W * gain`."""
    return W * gain[:, None], b + W @ bias


@fold_norm.mistake("W turned round")
def _(gain: Any, bias: Any, W: Any, b: Any) -> Any:
    """You send the bias through W.T. nn.Linear stores a row for each output, so it computes
    `x @ W.T`, which for one vector is `W @ x`."""
    return W * gain, b + bias @ W
