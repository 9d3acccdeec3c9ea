"""Exercises of chapter 5: GELU, the MLP, SwiGLU, and dropout.

GELU is asked for in its tanh form, so the exact form is one of the known answers that differ. The
MLP is built by the reader's class and filled here, with biases of 0, so that a class without biases
is right too. Dropout is given its random numbers, so that there is only one right answer.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptedu.check.exercise import Exercise, normal
from gptedu.mlp import gelu as right_gelu


def same(x: Tensor) -> Tensor:
    """No bend at all."""
    return x


# GELU

gelu = Exercise(
    "gelu",
    task="gelu(x) is the tanh form: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x**3))).",
    reference=right_gelu,
    probes=lambda: {
        "numbers from -4 to 4": (torch.linspace(-4, 4, 33),),
        "a batch": (2 * normal(2, 5, 8, seed=1),),
    },
)


def _gelu(
    x: Any,
    cube: float = 0.044715,
    root: float = math.sqrt(2 / math.pi),
    power: int = 3,
    one: float = 1.0,
    half: float = 0.5,
) -> Any:
    """The tanh form with one screw turned."""
    return half * x * (one + torch.tanh(root * (x + cube * x**power)))


def _at_one(_: Any, x: Tensor) -> dict[str, Any]:
    one = torch.ones(1)
    gap = (F.gelu(x) - right_gelu(x)).abs().max().item()
    return {"right": right_gelu(one).item(), "gap": gap}


@gelu.mistake("the exact form", numbers=_at_one)
def _(x: Any) -> Any:
    """This is GELU as it is defined, x times the normal distribution function, by `erf`. It is
    no worse, but it is not the form that GPT-2 was trained with, and which is asked for here: the
    two differ by up to {gap:.4f} on this probe."""
    return F.gelu(x)


def _coarser(out: Tensor, x: Tensor) -> dict[str, Any]:
    return {"gap": (out - right_gelu(x)).abs().max().item()}


@gelu.mistake("the sigmoid form", numbers=_coarser)
def _(x: Any) -> Any:
    """x * sigmoid(1.702 x) is the other approximation of the GELU paper. It is coarser: on this
    probe it is up to {gap:.3f} away from what is asked for, the tanh form."""
    return x * torch.sigmoid(1.702 * x)


@gelu.mistake("SiLU")
def _(x: Any) -> Any:
    """x * sigmoid(x) is SiLU, also called Swish. It looks alike but bends more softly, and it is
    what SwiGLU uses. GELU's tanh form has no sigmoid in it."""
    return F.silu(x)


@gelu.mistake("0.44715 in place of 0.044715")
def _(x: Any) -> Any:
    """A zero is missing: the factor before the cube is 0.044715. Yours is ten times as large, and
    the curve becomes too steep near 1."""
    return _gelu(x, cube=0.44715)


@gelu.mistake("2 / pi without the root")
def _(x: Any) -> Any:
    """The factor is the root of 2 / pi, 0.798; you used 2 / pi itself, 0.637. With the root,
    (1 + tanh) / 2 leaves 0 with the slope 0.399, which is that of the normal distribution function;
    yours has 0.318."""
    return _gelu(x, root=2 / math.pi)


@gelu.mistake("half the factor")
def _(x: Any) -> Any:
    """Your factor is 1 / sqrt(2 pi), 0.399: the density at 0, and so the slope of (1 + tanh) / 2.
    The half takes its part of that, so tanh itself needs twice as much: sqrt(2 / pi), 0.798."""
    return _gelu(x, root=1 / math.sqrt(2 * math.pi))


@gelu.mistake("no cube")
def _(x: Any) -> Any:
    """The cube is missing: 0.044715 x**3 is added to x before the factor. Near 0 that changes
    little, further out it takes care of the bend."""
    return _gelu(x, cube=0.0)


@gelu.mistake("the cube outside the bracket")
def _(x: Any) -> Any:
    """Your factor sqrt(2 / pi) multiplies x alone. It belongs before a bracket that holds both, x
    and the cube: sqrt(2 / pi) * (x + 0.044715 x**3)."""
    return _gelu(x, cube=0.044715 / math.sqrt(2 / math.pi))


@gelu.mistake("x squared in place of x cubed")
def _(x: Any) -> Any:
    """You wrote x**2 where x**3 belongs. A square has the same sign on both sides of 0, so your
    curve is lopsided; the cube keeps the sign."""
    return _gelu(x, power=2)


@gelu.mistake("the 1 is missing")
def _(x: Any) -> Any:
    """tanh runs from -1 to 1. The weight that x is multiplied with must run from 0 to 1: that is
    (1 + tanh) / 2. Without the 1 your function is even, and large for very negative x."""
    return _gelu(x, one=0.0)


@gelu.mistake("the half is missing", numbers=_at_one)
def _(x: Any) -> Any:
    """Your function is twice as large as it should be: 1 + tanh runs from 0 to 2. Halve it; at 1,
    GELU is {right:.3f}."""
    return _gelu(x, half=1.0)


# the MLP


def _run_mlp(cls: Callable[..., nn.Module], d_model: int, d_ff: int, x: Tensor) -> Tensor:
    if isinstance(cls, nn.Module):
        raise ValueError("give the class itself, not an object of it: check.mlp(MyMLP)")
    module = cls(d_model, d_ff)
    for seed, name in enumerate(("up", "down")):
        layer = getattr(module, name, None)
        if not isinstance(layer, nn.Linear):
            kind = "missing" if layer is None else f"a {type(layer).__name__}"
            raise ValueError(f"an MLP needs nn.Linear layers up and down; your {name} is {kind}")
        with torch.no_grad():
            weight = normal(*layer.weight.shape, seed=seed)
            layer.weight.copy_(weight * weight.shape[1] ** -0.5)
            if layer.bias is not None:
                layer.bias.zero_()
    return module(x)


class _Wired(nn.Module):
    """An MLP with one screw turned: a bend at each of two places, its width, a last touch."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        between: Callable[[Tensor], Tensor] = F.relu,
        after: Callable[[Tensor], Tensor] = same,
        add: bool = False,
    ) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.between, self.after, self.add = between, after, add

    def forward(self, x: Tensor) -> Tensor:
        out = self.after(self.down(self.between(self.up(x))))
        return x + out if self.add else out


mlp = Exercise(
    "mlp",
    task="A class MLP(d_model, d_ff), an nn.Module with nn.Linear layers up and down and ReLU; its "
    "forward takes x (B, T, d_model) and returns the same shape.",
    reference=_Wired,
    probes=lambda: {
        "width 8, hidden 32": (8, 32, normal(2, 5, 8, seed=5)),
        "width 6, hidden 20": (6, 20, normal(3, 4, 6, seed=6)),
    },
    outputs=("out",),
    run=_run_mlp,
)


@mlp.mistake("no activation")
def _(C: int, F: int) -> nn.Module:
    """There is no bend between your two matrices. Two matrices in a row are one matrix, so this MLP
    can do nothing that a single linear layer could not. Put the ReLU between up and down."""
    return _Wired(C, F, between=same)


def _negatives(out: Tensor, C: int, F: int, x: Tensor) -> dict[str, Any]:
    return {"least": out.min().item(), "share": (out == 0).float().mean().item()}


@mlp.mistake("activation after the second matrix", numbers=_negatives)
def _(C: int, F_: int) -> nn.Module:
    """Your ReLU comes last: the smallest output is {least:.2f}, and {share:.0%} are exactly 0. Such
    an MLP can only add to the stream, never take away; and the two matrices before it collapse into
    one. The bend belongs between them."""
    return _Wired(C, F_, between=same, after=F.relu)


@mlp.mistake("activation twice", numbers=_negatives)
def _(C: int, F_: int) -> nn.Module:
    """The ReLU between the matrices is right. The one after the second is too much: it cuts off
    every negative output ({share:.0%} of yours are exactly 0), so the MLP can never take anything
    away from the stream."""
    return _Wired(C, F_, after=F.relu)


@mlp.mistake("hidden layer as narrow as the model", numbers=lambda out, C, F, x: {"C": C, "F": F})
def _(C: int, F: int) -> nn.Module:
    """Your hidden layer has {C} units, as many as the model is wide; d_ff = {F} were asked for. The
    matrix up goes from d_model to d_ff, down goes back."""
    return _Wired(C, C)


@mlp.mistake("mean over positions")
def _(C: int, F_: int) -> nn.Module:
    """You average over the positions (axis 1), so every position gets the same, and the future
    leaks into the past. An MLP treats each position alone: nothing in it touches the axis T."""
    return _Wired(C, F_, after=lambda out: out.mean(1, keepdim=True).expand_as(out))


@mlp.mistake("always four times", numbers=lambda out, C, F, x: {"wide": 4 * C, "F": F})
def _(C: int, F_: int) -> nn.Module:
    """Your hidden layer has {wide} units; d_ff = {F} were asked for. Four times the width is a
    habit, not a law: use the argument."""
    return _Wired(C, 4 * C)


@mlp.mistake("GELU")
def _(C: int, F_: int) -> nn.Module:
    """Right but for the bend: ReLU is asked for here, and yours is GELU. It would train as well,
    but a check must know which one to expect."""
    return _Wired(C, F_, between=F.gelu)


@mlp.mistake("the residual is added inside")
def _(C: int, F: int) -> nn.Module:
    """You return x + MLP(x). The addition belongs to the block (chapter 6), which would then add x
    twice. Return what down gives."""
    return _Wired(C, F, add=True)


# SwiGLU


def right_swiglu(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """The gate is bent, the rest is linear."""
    return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down


def _swiglu_probes() -> dict[str, tuple[Any, ...]]:
    def weights(C: int, F: int) -> tuple[Tensor, ...]:
        return normal(C, F, seed=2), normal(C, F, seed=3), normal(F, C, seed=4)

    return {
        "one text": (normal(1, 4, 6, seed=1), *weights(6, 16)),
        "two texts": (normal(2, 3, 8, seed=7), *weights(8, 12)),
    }


swiglu = Exercise(
    "swiglu",
    task="swiglu(x, w_gate, w_up, w_down) for x (B, T, C), matrices (C, F), (C, F) and (F, C).",
    reference=right_swiglu,
    probes=_swiglu_probes,
    outputs=("out",),
)


@swiglu.mistake("the bend is on the other branch")
def _(x: Any, w_gate: Any, w_up: Any, w_down: Any) -> Any:
    """Your gate is linear and your `up` is bent (or the two matrices are exchanged, which comes to
    the same). A model that trains with it learns as well, but weights of a trained one, such as
    Llama's, give nonsense: `silu(x @ w_gate) * (x @ w_up)`."""
    return right_swiglu(x, w_up, w_gate, w_down)


@swiglu.mistake("both branches bent")
def _(x: Any, w_gate: Any, w_up: Any, w_down: Any) -> Any:
    """You bend both branches. Only the gate goes through SiLU; the other branch stays linear, so
    that a unit can answer with either sign."""
    return (F.silu(x @ w_gate) * F.silu(x @ w_up)) @ w_down


@swiglu.mistake("the bend after the product")
def _(x: Any, w_gate: Any, w_up: Any, w_down: Any) -> Any:
    """You multiply first and bend the product. The gate must be bent before it is multiplied:
    SiLU(gate) * up."""
    return F.silu((x @ w_gate) * (x @ w_up)) @ w_down


@swiglu.mistake("sigmoid in place of SiLU")
def _(x: Any, w_gate: Any, w_up: Any, w_down: Any) -> Any:
    """With a sigmoid this is GLU, the gate of 2017. SiLU is x * sigmoid(x): the gate keeps its own
    size and can be larger than 1."""
    return (torch.sigmoid(x @ w_gate) * (x @ w_up)) @ w_down


@swiglu.mistake("GEGLU")
def _(x: Any, w_gate: Any, w_up: Any, w_down: Any) -> Any:
    """Your gate is bent by GELU: that is GEGLU, a sister of SwiGLU. The name says which bend: Swi
    is for Swish, today called SiLU."""
    return (F.gelu(x @ w_gate) * (x @ w_up)) @ w_down


@swiglu.mistake("no bend in the gate")
def _(x: Any, w_gate: Any, w_up: Any, w_down: Any) -> Any:
    """Your gate is not bent. Because of the product this is not linear, but it is no gate: a
    product of two linear readings, with the sign turned wherever the gate is negative. Apply
    `F.silu` to `x @ w_gate`."""
    return ((x @ w_gate) * (x @ w_up)) @ w_down


@swiglu.mistake("added in place of multiplied")
def _(x: Any, w_gate: Any, w_up: Any, w_down: Any) -> Any:
    """You add the two branches. A gate multiplies: where it is near 0, nothing gets through,
    whatever the other branch says."""
    return (F.silu(x @ w_gate) + x @ w_up) @ w_down


@swiglu.mistake("the way down is missing")
def _(x: Any, w_gate: Any, w_up: Any, w_down: Any) -> Any:
    """You stop at the hidden layer, which is as wide as d_ff. Multiply by `w_down`, so that the
    answer fits the vector that came in."""
    return F.silu(x @ w_gate) * (x @ w_up)


@swiglu.mistake("one branch unused")
def _(x: Any, w_gate: Any, w_up: Any, w_down: Any) -> Any:
    """You never use `w_up`: this is a plain MLP with SiLU. The third matrix gives the values that
    the gate lets through."""
    return F.silu(x @ w_gate) @ w_down


# dropout


def right_dropout(x: Tensor, noise: Tensor, p: float, training: bool = True) -> Tensor:
    """What survives is divided by the chance to survive."""
    return x * (noise >= p) / (1 - p) if training else x


dropout = Exercise(
    "dropout",
    task="dropout(x, noise, p, training): noise is uniform between 0 and 1, of x's shape; where it "
    "is below p the number is dropped. Without training, x comes back as it is.",
    reference=right_dropout,
    probes=lambda: {
        "p = 0.2": (normal(4, 6, seed=1), torch.rand(4, 6, generator=_seed(2)), 0.2, True),
        "p = 0.5": (normal(4, 6, seed=3), torch.rand(4, 6, generator=_seed(4)), 0.5, True),
        "not training": (normal(4, 6, seed=5), torch.rand(4, 6, generator=_seed(6)), 0.2, False),
    },
)


def _seed(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _means(out: Tensor, x: Tensor, noise: Tensor, p: float, training: bool) -> dict[str, Any]:
    left, size = 1 - p, (x.abs() * (noise >= p)).sum()
    return {"p": p, "factor": 1 / left, "yours": (out.abs().sum() / size).item()}


@dropout.mistake(
    "survivors divided by p",
    numbers=_means,
    source="https://github.com/rasbt/LLMs-from-scratch/issues/431",
)
def _(x: Any, noise: Any, p: float, training: bool) -> Any:
    """You multiply what survives by {yours:.2f}, that is 1 / p. But 1 - p survives, so the factor
    is 1 / (1 - p) = {factor:.2f}. At p = 0.5 the two are the same, which is why this hides so
    well."""
    return x * (noise >= p) / p if training else x


@dropout.mistake("survivors not scaled", numbers=_means)
def _(x: Any, noise: Any, p: float, training: bool) -> Any:
    """You drop, but leave the survivors as they are. Then sums are smaller by the factor
    1 - p in training than in use, and the next layer meets numbers of a size that it never saw.
    Multiply by 1 / (1 - p) = {factor:.2f}."""
    return x * (noise >= p) if training else x


@dropout.mistake("dropped in use, too")
def _(x: Any, noise: Any, p: float, training: bool) -> Any:
    """You ignore `training`. A model in use should answer the same each time, with all its units:
    return x as it is. (Forgetting `model.eval()` has the same effect.)"""
    return right_dropout(x, noise, p)


@dropout.mistake("scaled in use, and in training too")
def _(x: Any, noise: Any, p: float, training: bool) -> Any:
    """Right in training, but in use you multiply by 1 - p as well. That was the way of the first
    papers, which did not scale in training. Do one of the two, not both."""
    return right_dropout(x, noise, p) if training else x * (1 - p)


@dropout.mistake("p is the share that stays", numbers=_means)
def _(x: Any, noise: Any, p: float, training: bool) -> Any:
    """You keep a number with probability p. Here, as in PyTorch, p is the chance to be dropped:
    with p = {p} most numbers should stay."""
    return x * (noise < p) / p if training else x


@dropout.mistake("the two cases exchanged")
def _(x: Any, noise: Any, p: float, training: bool) -> Any:
    """You drop in use and not in training: the condition is the wrong way round. In training it
    makes units replaceable; in use all of them should help."""
    return x if training else right_dropout(x, noise, p)


@dropout.mistake("dropout as first published")
def _(x: Any, noise: Any, p: float, training: bool) -> Any:
    """That is dropout as first published: nothing scaled in training, all scaled by 1 - p in use.
    The mean agrees, but here use shall change nothing: divide by 1 - p in training."""
    return x * (noise >= p) if training else x * (1 - p)


@dropout.mistake("divided by the share that happened to survive", numbers=_means)
def _(x: Any, noise: Any, p: float, training: bool) -> Any:
    """You divide by the share that survived this time, so the factor is {yours:.2f} here. What
    counts is the mean over many draws, and there 1 - p survive: always the factor {factor:.2f}."""
    return x * (noise >= p) / (noise >= p).float().mean() if training else x
