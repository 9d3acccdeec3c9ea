"""Exercises of chapter 13: a crossing, the bytes of a device, an all-reduce by hand."""

import operator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gptedu.check.counting import KNOWN
from gptedu.check.exercise import Exercise
from gptedu.config import PRESETS, GPTConfig
from gptedu.cost import flops_per_token, memory

# the crossing


def _crossing(
    config: GPTConfig,
    matrices: tuple[str, ...] = ("projections", "mlp"),
    growing: tuple[str, ...] = ("scores", "mixing"),
) -> float:
    """Operations of the first, over those of the second for one token of context."""
    work = flops_per_token(config, 1)
    return sum(getattr(work, m) for m in matrices) / sum(getattr(work, g) for g in growing)


crossover = Exercise(
    "crossover",
    task="crossover(config) returns the context length T at which scores and mixing cost as many "
    "operations as all matrices of the blocks. The head stays out of it.",
    reference=_crossing,
    probes=lambda: {name: (KNOWN[name],) for name in ("gpt2", "llama3-8b", "gemma-7b")},
    outputs=("T",),
)
_crossover_mistake = partial(
    crossover.mistake,
    numbers=lambda yours, c: c.to_dict() | {"yours": yours, "right": _crossing(c)},
)


@_crossover_mistake("6 C, whatever the model")
def _(config: Any) -> Any:
    """6 C = {yours:,} holds where K = H, H D = C and F = 4 C, as in GPT-2. This model has a width
    of {d_model}, an MLP of {d_ff} ({mlp}), and {n_kv_head} key heads for {n_head} query heads.
    Count its own matrices, and it is {right:,.0f}."""
    return 6 * config.d_model


@_crossover_mistake("mixing forgotten")
def _(config: Any) -> Any:
    """Your {yours:,.0f} is twice too far. Queries times keys cost 2 T H D operations for a token,
    and weights times values as many again: both grow with T."""
    return _crossing(config, growing=("scores",))


@_crossover_mistake("the MLP alone")
def _(config: Any) -> Any:
    """At {yours:,.0f} tokens scores and mixing cost as much as the MLP. The blocks have more
    matrices than that: query, key, value and output. With them it is {right:,.0f}."""
    return _crossing(config, matrices=("mlp",))


@_crossover_mistake("keys and values as wide as queries")
def _(config: Any) -> Any:
    """You charge for {n_head} heads in W_K and W_V. There are {n_kv_head}. The scores do not get
    cheaper by sharing, so they catch up sooner: at {right:,.0f}."""
    return _crossing(replace(config, n_kv_head=config.n_head))


@_crossover_mistake("an MLP of two matrices")
def _(config: Any) -> Any:
    """You count two matrices in each MLP. This one is gated ({mlp}) and has three of {d_model} x
    {d_ff}: up, gate and down. With all of them it is {right:,.0f}."""
    return _crossing(replace(config, mlp="gelu"))


@_crossover_mistake("the head counted in")
def _(config: Any) -> Any:
    """{yours:,.0f} is where scores and mixing draw level with all matrices of the model. The head
    at the end is no part of a block, so leave it out: {right:,.0f}."""
    return _crossing(config, matrices=("projections", "mlp", "head"))


@_crossover_mistake("one operation a weight")
def _(config: Any) -> Any:
    """Your {yours:,.0f} is half of it. Each weight does two operations for a token, a
    multiplication and an addition. The 4 T H D of scores and mixing counts both already."""
    return _crossing(config) / 2


# the bytes of a device


def _device(
    config: GPTConfig,
    devices: int,
    batch_size: int,
    stage: int,
    divided: Any = operator.ge,
    kernel: str = "fused",
    recipe: tuple[int, ...] = (8, 4, 4),
) -> tuple[float, int]:
    """What belongs to the model, and the activations. A part is divided from its stage on.

    `recipe` is the bytes a parameter of the optimizer, the gradient and the weight.
    """
    held = memory(config, batch_size, kernel=kernel)
    parts = {s: held.weights / 4 * size for s, size in enumerate(recipe, 1)}
    kept = sum(part / devices if divided(stage, s) else part for s, part in parts.items())
    return kept, sum(held.activations.values())


def _gigabytes(yours: float, *given: Any) -> dict[str, Any]:
    kept, activations = _device(*given)
    sizes = {"yours": yours / 1e9, "right": kept / 1e9 + activations / 1e9}
    words = dict(zip(("devices", "batch", "stage"), given[1:], strict=True))
    return sizes | words | {"activations": activations / 1e9}


device_bytes = Exercise(
    "device_bytes",
    task="device_bytes(config, devices, batch_size, stage) returns the bytes that each device "
    'holds at the peak of training, by gptedu.cost.memory(config, batch_size, kernel="fused"), '
    "under stage 0, 1, 2 or 3 of ZeRO. batch_size is the texts of one device.",
    reference=lambda *given: sum(_device(*given)),
    probes=lambda: {
        f"stage {stage} with {n} devices, batch {texts}": (PRESETS["gpt2"], n, texts, stage)
        for n, texts, stage in ((4, 2, 3), (4, 2, 2), (8, 1, 1), (8, 1, 0))
    },
    outputs=("bytes",),
)
_device_mistake = partial(device_bytes.mistake, numbers=_gigabytes)


@_device_mistake(
    "activations shared out", source="https://github.com/facebookresearch/fairscale/issues/1050"
)
def _(config: Any, devices: Any, batch_size: Any, stage: Any) -> Any:
    """You divide activations by {devices} too, and come to {yours:.2f} GB. Sharding shares out what
    belongs to the model. Activations belong to the {batch} texts of this device, which nobody else
    reads: {activations:.2f} GB of them stay."""
    kept, activations = _device(config, devices, batch_size, stage)
    return kept + activations / (devices if stage else 1)


@_device_mistake("all divided, activations too")
def _(config: Any, devices: Any, batch_size: Any, stage: Any) -> Any:
    """You divide the total by {devices}. Which part of the model is divided depends on the stage.
    Activations are not divided at any: {activations:.2f} GB of them belong to the {batch} texts of
    this device, which nobody else reads."""
    return sum(_device(config, 1, batch_size, stage)) / (devices if stage else 1)


@_device_mistake("only what the stage adds")
def _(config: Any, devices: Any, batch_size: Any, stage: Any) -> Any:
    """Stage {stage} divides what the stages before it divide, and one thing more: the optimizer's
    state, then gradients, then weights. You divide the last one only."""
    return sum(_device(config, devices, batch_size, stage, operator.eq))


@_device_mistake("all or nothing")
def _(config: Any, devices: Any, batch_size: Any, stage: Any) -> Any:
    """You divide weights, gradients and optimizer at every stage above 0. That is stage 3. The
    stages before it keep whole weights, and stage 1 keeps whole gradients as well."""
    return sum(_device(config, devices, batch_size, 3 if stage else 0))


@_device_mistake("activations forgotten")
def _(config: Any, devices: Any, batch_size: Any, stage: Any) -> Any:
    """{yours:.2f} GB is what belongs to the model. The peak is at the end of the forward pass,
    where {activations:.2f} GB of activations are held for {batch} texts: {right:.2f} GB in all."""
    return _device(config, devices, batch_size, stage)[0]


@_device_mistake("the explicit kernel")
def _(config: Any, devices: Any, batch_size: Any, stage: Any) -> Any:
    """{yours:.2f} GB has the attention weights in it. That is the kernel that is written out, which
    memory(...) assumes unless told kernel="fused". With the fused one it is {right:.2f} GB."""
    return sum(_device(config, devices, batch_size, stage, kernel="explicit"))


@_device_mistake("the bytes of mixed precision")
def _(config: Any, devices: Any, batch_size: Any, stage: Any) -> Any:
    """You count 2, 2 and 12 bytes a parameter, as the table of the stages does for mixed precision.
    The plain recipe has 4, 4 and 8: 4 for the weight, 4 for the gradient, 8 for the two means."""
    return sum(_device(config, devices, batch_size, stage, recipe=(12, 2, 2)))


# all-reduce


def _ring(values: Tensor, turn: int = -1, adding: int = 1, laps: int = 2) -> Tensor:
    """A lap is n - 1 rounds; the first `adding` of `laps` sum."""
    n, states = len(values), [values.clone()]
    for r in range(laps * (n - 1)):
        before, after = states[-1], states[-1].clone()
        for rank in range(n):
            chunk, to = (rank + turn * r) % n, (rank + 1) % n
            kept = before[to, chunk] if r < adding * (n - 1) else 0.0
            after[to, chunk] = before[rank, chunk] + kept
        states.append(after)
    return torch.stack(states[1:])


ring = Exercise(
    "ring",
    task="ring(values) does an all-reduce. Row i of values, shape (n, n), is the gradient of rank "
    "i in n chunks. In round r (from 0) each rank i sends chunk (i - r) mod n to rank i + 1 (the "
    "last to the first), which adds it to its own in the first n - 1 rounds, and in the n - 1 "
    "after that puts it in place of its own. Returns all states, shape (2 n - 2, n, n).",
    reference=_ring,
    probes=lambda: {
        f"{n} ranks": (torch.arange(float(n * n)).view(n, n).square() + 1,) for n in (3, 4)
    },
    outputs=("states",),
)


@ring.mistake("nothing is added")
def _(values: Any) -> Any:
    """You replace from the first round on, so each chunk ends as one rank's own, everywhere. The
    first n - 1 rounds are there to sum: a chunk travels, and each rank adds its part."""
    return _ring(values, adding=0)


@ring.mistake("the second lap adds too", numbers=lambda yours, v: {"sum": v.sum(0)[0].item()})
def _(values: Any) -> Any:
    """After n - 1 rounds each chunk is complete in one rank; chunk 0 sums to {sum:g}. Adding it
    to what the others have counts some ranks twice. In the second lap what comes is the whole: it
    takes the place of what is there."""
    return _ring(values, adding=2)


@ring.mistake("half way", numbers=lambda yours, v: {"rounds": len(v) - 1})
def _(values: Any) -> Any:
    """You stop after {rounds} rounds. Then each rank has one chunk that is complete, and {rounds}
    that are not. (This is a reduce-scatter, and what stage 2 of ZeRO does with its gradients.)
    Another {rounds} rounds hand the complete ones on."""
    return _ring(values, laps=1)


@ring.mistake("the same chunk every round")
def _(values: Any) -> Any:
    """Rank i sends its chunk i in every round. What it must pass on is what it has just received
    and added to, the chunk before: i - r in round r. Else a sum never gets further than one
    neighbour."""
    return _ring(values, turn=0)


@ring.mistake("the wrong way round the chunks")
def _(values: Any) -> Any:
    """You send chunk i + r. The messages go to rank i + 1, so what rank i has just got is the chunk
    of the rank before it: i - 1, then i - 2. Count backwards."""
    return _ring(values, turn=1)
