"""Exercises of chapters 1 and 9: pairs of input and target, the loss, the rate, half batches."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptedu.check.exercise import Exercise, Probes
from gptedu.config import GPTConfig, TrainConfig
from gptedu.model import GPT
from gptedu.optim import learning_rate as right_rate

_log_softmax = partial(F.log_softmax, dim=-1)


# pairs


def _pairs(
    ids: Tensor, context_length: int, *, shift: int = 1, stride: int = 0, spare: int = 0
) -> tuple[Tensor, Tensor]:
    """Windows with `stride` tokens between; targets `shift` tokens on; `spare` windows lost."""
    T = context_length
    windows = ids.unfold(0, T + max(shift, 0), T + stride)
    windows = windows[: len(windows) - spare]
    return windows[:, :T], windows[:, shift : shift + T]


def _first_pair(output: tuple[Tensor, Tensor], *_: Any) -> dict[str, Any]:
    return {"x": output[0][0].tolist(), "y": output[1][0].tolist()}


def _counts(output: tuple[Tensor, Tensor], ids: Tensor, T: int) -> dict[str, Any]:
    return {"n": len(output[0]), "right": (len(ids) - 1) // T, "T": T, "T1": T + 1}


next_token_pairs = Exercise(
    "next_token_pairs",
    task="next_token_pairs(ids, context_length) cuts ids (N,) into windows x that follow each "
    "other without overlap, and their targets y, one token later: both (n, context_length). What "
    "does not fill a window is dropped.",
    reference=_pairs,
    probes=lambda: {
        "13 tokens in windows of 4": (torch.arange(13) * 7 % 13, 4),
        "12 tokens in windows of 4": (torch.arange(12) * 5 % 12, 4),
        "11 tokens in windows of 3": (torch.arange(11) * 4 % 11, 3),
    },
    outputs=("x", "y"),
    all_outputs=True,
)


@next_token_pairs.mistake("targets not shifted", numbers=_first_pair)
def _(*inputs: Any) -> Any:
    """Your first target is {y}, equal to its input {x}. A model that is asked for the token
    that it sees learns to copy: the loss falls to nearly 0, and the text is garbage. The target
    of position i is token i + 1."""
    return _pairs(*inputs, shift=0)


@next_token_pairs.mistake("targets two tokens on", numbers=_first_pair)
def _(*inputs: Any) -> Any:
    """For the input {x} your target is {y}: it skips a token. The next token is one on."""
    return _pairs(*inputs, shift=2)


@next_token_pairs.mistake("input and target swapped")
def _(ids: Any, context_length: Any) -> Any:
    """Your targets come before their inputs: the model would learn to tell the past."""
    return _pairs(ids, context_length)[::-1]


@next_token_pairs.mistake(
    "windows overlap",
    numbers=_counts,
    source="https://github.com/rasbt/LLMs-from-scratch/issues/23",
)
def _(ids: Any, context_length: Any) -> Any:
    """You start a window at every token, so {n} windows where {right} hold the whole text, and
    an epoch sees each token {T} times. That is not wrong for drawing at random, but here the
    windows are to follow each other: step by context_length."""
    return _pairs(ids, context_length, stride=1 - context_length)


@next_token_pairs.mistake("a token lost between windows", numbers=_counts)
def _(*inputs: Any) -> Any:
    """You step by context_length + 1. A window of T + 1 tokens holds T pairs, and its last
    token is also the first input of the next window. Your way, one pair in {T1} is never
    learnt."""
    return _pairs(*inputs, stride=1)


@next_token_pairs.mistake("last window lost", numbers=_counts)
def _(*inputs: Any) -> Any:
    """Your loop stops one window early: {n} where there is room for {right}. N tokens give
    N - 1 pairs, so (N - 1) // context_length windows."""
    return _pairs(*inputs, spare=1)


@next_token_pairs.mistake("targets wrap around")
def _(ids: Any, context_length: Any) -> Any:
    """You shift with `roll`, which brings the text's first token round to its end as a target.
    The last token has no next one: leave it out."""
    n = len(ids) // context_length * context_length
    return tuple(x[:n].view(-1, context_length) for x in (ids, ids.roll(-1)))


# the loss


def _loss(
    logits: Tensor,
    targets: Tensor,
    *,
    reduce: Callable[[Tensor], Tensor] = torch.mean,
    log_softmax: Callable[[Tensor], Tensor] = _log_softmax,
) -> Tensor:
    """Cross-entropy with one screw turned: the average, or the way to log-probabilities."""
    return reduce(-log_softmax(logits).gather(-1, targets[..., None])[..., 0])


def _loss_numbers(loss: Tensor, logits: Tensor, targets: Tensor) -> dict[str, Any]:
    B, T, V = logits.shape
    right = _loss(logits, targets).item()
    return {"loss": loss.item(), "right": right, "n": B * T, "B": B, "T": T, "V": V}


def _loss_probes() -> Probes:
    draw = torch.Generator().manual_seed(7)
    logits = 2 * torch.randn(3, 4, 7, generator=draw)
    targets = torch.randint(7, (3, 4), generator=draw)
    return {
        "three texts of four tokens": (logits, targets),
        "the same with logits near 200": (logits + 200, targets),
    }


cross_entropy = Exercise(
    "cross_entropy",
    task="cross_entropy(logits, targets): logits (B, T, V), targets (B, T) -> the mean over all "
    "tokens of -ln of the probability of the target, in nats.",
    reference=_loss,
    probes=_loss_probes,
    outputs=("loss",),
)


@cross_entropy.mistake("sum in place of mean", numbers=_loss_numbers)
def _(*inputs: Any) -> Any:
    """Your loss is {loss:.3f}, the sum over {n} tokens; their mean is {right:.3f}. A sum grows
    with the batch, and so would the gradient: the learning rate would depend on it."""
    return _loss(*inputs, reduce=torch.sum)


@cross_entropy.mistake("averaged twice", numbers=_loss_numbers)
def _(*inputs: Any) -> Any:
    """Your loss of {loss:.4f} is the mean {right:.4f} divided once more by the number of
    tokens, {n}. torch's `cross_entropy` has averaged already."""
    return _loss(*inputs, reduce=lambda x: x.mean() / x.numel())


@cross_entropy.mistake("divided by the batch only", numbers=_loss_numbers)
def _(logits: Any, targets: Any) -> Any:
    """You divide the sum by the {B} texts, not by all {n} tokens: {loss:.3f} is {T} times too
    large. It is the mean over tokens that starts near ln V."""
    return _loss(logits, targets, reduce=torch.sum) / len(targets)


@cross_entropy.mistake("averaged over the vocabulary too", numbers=_loss_numbers)
def _(logits: Any, targets: Any) -> Any:
    """Your {loss:.4f} is the right {right:.4f} divided by the vocabulary, {V}: the mean runs
    over one-hot rows, most of them zeros. Each token counts once."""
    return _loss(logits, targets) / logits.shape[-1]


@cross_entropy.mistake("bits in place of nats", numbers=_loss_numbers)
def _(logits: Any, targets: Any) -> Any:
    """You take the logarithm to base 2: {loss:.3f} bits are {right:.3f} nats. Both are right as
    a measure, but all losses of this book, and ln V at the start, are in nats."""
    return _loss(logits, targets) / math.log(2)


@cross_entropy.mistake("sign forgotten", numbers=_loss_numbers)
def _(logits: Any, targets: Any) -> Any:
    """Your loss is {loss:.3f}. A logarithm of a probability is negative; the loss is minus
    that. Descending yours would make the targets ever less likely."""
    return -_loss(logits, targets)


@cross_entropy.mistake("softmax twice", numbers=_loss_numbers)
def _(logits: Any, targets: Any) -> Any:
    """`cross_entropy` takes logits and does the softmax itself; you gave it probabilities. They
    lie between 0 and 1, so even a perfect model cannot come near 0: your loss is {loss:.3f},
    close to ln V whatever the model says."""
    return _loss(logits.softmax(-1), targets)


@cross_entropy.mistake("log of the mean", numbers=_loss_numbers)
def _(*inputs: Any) -> Any:
    """You average the probabilities, then take the logarithm: {loss:.3f}. Each token's
    logarithm comes first, then the mean, {right:.3f}; else one certain token hides a hopeless
    one."""
    return _loss(*inputs, reduce=lambda x: -(-x).exp().mean().log())


@cross_entropy.mistake("targets shifted twice")
def _(logits: Any, targets: Any) -> Any:
    """You compare the logits at position i with target i + 1. The targets are the next tokens
    already: this asks for the token after the next one."""
    return _loss(logits[:, :-1], targets[:, 1:])


@cross_entropy.mistake("view in place of transpose")
def _(logits: Any, targets: Any) -> Any:
    """torch wants (B, V, T) for a batch of texts. `view` keeps the numbers in their order and
    only cuts them anew, so logits of several tokens are mixed. Use `transpose(1, 2)`, or
    flatten both: `logits.flatten(0, 1)`, `targets.flatten()`."""
    return F.cross_entropy(logits.reshape(len(logits), logits.shape[2], logits.shape[1]), targets)


@cross_entropy.mistake("softmax along the wrong axis")
def _(*inputs: Any) -> Any:
    """Your probabilities sum to 1 over the positions of a text, not over the vocabulary: use
    `dim=-1`."""
    return _loss(*inputs, log_softmax=partial(F.log_softmax, dim=1))


@cross_entropy.mistake("exponentials that overflow", numbers=_loss_numbers)
def _(*inputs: Any) -> Any:
    """exp(200) does not fit into a 32-bit number: with large logits your loss is {loss}.
    Subtract the maximum before exp, or use `log_softmax`, which does."""
    return _loss(*inputs, log_softmax=lambda x: (x.exp() / x.exp().sum(-1, keepdim=True)).log())


# the learning rate


def _rate(
    config: TrainConfig,
    step: int,
    *,
    first: int = 1,
    last: int = 0,
    start: int | None = None,
    floor: bool = True,
    wave: Callable[[float], float] = lambda p: (1 + math.cos(math.pi * p)) / 2,
) -> float:
    """Warm-up and cosine with one screw turned."""
    if step < config.warmup:
        return config.lr * (step + first) / config.warmup
    start = config.warmup if start is None else start
    progress = (step - start) / max(1, config.steps - start - last)
    low = config.min_lr if floor else 0.0
    return low + (config.lr - low) * wave(min(1.0, progress))


def _rates(function: Callable[[TrainConfig, int], Any], config: TrainConfig) -> list[Any]:
    return [function(config, step) for step in range(config.steps)]


def _rate_numbers(rates: list[float], config: TrainConfig) -> dict[str, Any]:
    words = {"lr": config.lr, "min_lr": config.min_lr, "warmup": config.warmup}
    at = rates[config.warmup]
    return words | {"first": rates[0], "last": rates[-1], "top": max(rates), "at": at}


def _schedule(**words: Any) -> tuple[TrainConfig]:
    return (TrainConfig(schedule="cosine", lr=0.4, **words),)


learning_rate = Exercise(
    "learning_rate",
    task="learning_rate(config, step): the rate of the update number `step`, from 0. Warm-up: lr "
    "(step + 1) / warmup. Then half a cosine wave from lr to min_lr, reached where a further step "
    "would stand.",
    reference=right_rate,
    probes=lambda: {
        "20 steps, 5 of warm-up": _schedule(steps=20, warmup=5, min_lr=0.1),
        "12 steps, 3 of warm-up, to 0": _schedule(steps=12, warmup=3, min_lr=0.0),
    },
    outputs=("rates",),
    run=_rates,
)


@learning_rate.mistake(
    "first step zero", numbers=_rate_numbers, source="https://github.com/karpathy/nanoGPT/pull/578"
)
def _(*inputs: Any) -> Any:
    """Your first rate is {first}: that step computes a whole batch and moves nothing. Count
    from one, (step + 1) / warmup."""
    return _rate(*inputs, first=0)


@learning_rate.mistake("no warm-up", numbers=_rate_numbers)
def _(config: Any, step: Any) -> Any:
    """Your first rate is {first}, the peak at once. Adam's averages rest on a single gradient
    there, so the first steps are large and blind. Rise over {warmup} steps."""
    return config.lr if step < config.warmup else _rate(config, step)


@learning_rate.mistake("min_lr ignored", numbers=_rate_numbers)
def _(*inputs: Any) -> Any:
    """Your last rate is {last:.4f}; the wave should fall to min_lr = {min_lr}, not to 0."""
    return _rate(*inputs, floor=False)


@learning_rate.mistake("min_lr added on top", numbers=_rate_numbers)
def _(config: Any, step: Any) -> Any:
    """Your largest rate is {top:.4f}, more than lr = {lr}. The wave spans lr - min_lr: min_lr +
    (lr - min_lr) * wave."""
    return _rate(config, step, floor=False) + (config.min_lr if step >= config.warmup else 0.0)


@learning_rate.mistake("end one step early", numbers=_rate_numbers)
def _(*inputs: Any) -> Any:
    """Your last rate is {last:.4f}: min_lr is reached by the last update, which is wasted where
    min_lr is 0. Divide by steps - warmup, not by one less."""
    return _rate(*inputs, last=1)


@learning_rate.mistake("warm-up not subtracted", numbers=_rate_numbers)
def _(*inputs: Any) -> Any:
    """After warm-up your rate jumps to {at:.4f}, though the peak is {lr}: the wave runs over
    all steps. Progress is (step - warmup) / (steps - warmup)."""
    return _rate(*inputs, start=0)


@learning_rate.mistake("half forgotten", numbers=_rate_numbers)
def _(*inputs: Any) -> Any:
    """Your largest rate is {top:.4f}, twice the peak or nearly. 1 + cos runs from 2 to 0: halve
    it."""
    return _rate(*inputs, wave=lambda p: 1 + math.cos(math.pi * p))


@learning_rate.mistake("a whole wave", numbers=_rate_numbers)
def _(*inputs: Any) -> Any:
    """Your rate falls to min_lr in the middle and rises again to {last:.4f} at the end. Half a
    wave is asked for: the cosine of pi times progress, not of 2 pi."""
    return _rate(*inputs, wave=lambda p: (1 + math.cos(2 * math.pi * p)) / 2)


@learning_rate.mistake("a straight line")
def _(*inputs: Any) -> Any:
    """Your rate falls along a straight line. That is the schedule 'linear'; here the cosine is
    asked for, which stays high for longer and lands softly."""
    return _rate(*inputs, wave=lambda p: 1 - p)


# a batch in two halves


def _accumulated(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    factor: float = 0.5,
    axis: int = 0,
    parts: int = 2,
    clear: bool = False,
    stop: int = 2,
) -> None:
    """One batch in parts, with one screw turned."""
    for part_x, part_y in list(zip(x.chunk(parts, axis), y.chunk(parts, axis), strict=True))[:stop]:
        if clear:
            model.zero_grad()
        loss = F.cross_entropy(model(part_x).flatten(0, 1), part_y.flatten())
        (loss * factor).backward()


def _run_accumulate(
    subject: Callable[..., Any], x: Tensor, y: Tensor
) -> tuple[list[Tensor | None], int, int]:
    """The gradients that are left, the most windows in one pass (fewer than half is fine), and how
    many tensors of weights have moved."""
    model = GPT(GPTConfig.preset("tiny", vocab_size=11, context_length=6, n_layer=1, init="torch"))
    most = [len(x) // 2]
    model.register_forward_pre_hook(lambda _, inputs: most.append(len(inputs[0])))
    before = [p.detach().clone() for p in model.parameters()]
    subject(model, x, y)
    moved = sum(not p.equal(old) for p, old in zip(model.parameters(), before, strict=True))
    return [p.grad for p in model.parameters()], max(most), moved


def _length(gradients: list[Any]) -> float:
    return torch.cat([gradient.flatten() for gradient in gradients]).norm().item()


def _lengths(output: tuple[list[Any], int, int], x: Tensor, y: Tensor) -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the model that the check has used
        right, *_ = _run_accumulate(_accumulated, x, y)
    ratio = _length(output[0]) / _length(right)
    return {"ratio": ratio, "most": output[1], "T": x.shape[1]}


def _batch(B: int, seed: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(11, (B, 7), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1], ids[:, 1:]


accumulate = Exercise(
    "accumulate",
    task="accumulate(model, x, y) runs the two halves of a batch, x and y (B, T), one after the "
    "other, and leaves in every p.grad the gradient of the mean over the whole batch.",
    reference=_accumulated,
    probes=lambda: {"8 windows": _batch(8, 8), "4 windows": _batch(4, 9)},
    outputs=("gradients", "windows at once", "weights moved"),
    run=_run_accumulate,
)


@accumulate.mistake("not divided by the number of parts", numbers=_lengths)
def _(*inputs: Any) -> None:
    """Your gradient is {ratio:.2f} times as long as that of the whole batch. `backward` adds to
    p.grad, so you have the sum of two means. Their mean is half of that: divide each part's loss
    by the number of parts."""
    _accumulated(*inputs, factor=1.0)


@accumulate.mistake("divided twice", numbers=_lengths)
def _(*inputs: Any) -> None:
    """Your gradient is {ratio:.2f} times as long as that of the whole batch: you divide by the
    number of parts twice, perhaps once the losses and once the gradients."""
    _accumulated(*inputs, factor=0.25)


@accumulate.mistake("cleared between the halves", numbers=_lengths)
def _(*inputs: Any) -> None:
    """`zero_grad` before the second half wipes out what the first has left: your gradient is the
    second half's alone. Clear once, before the first part."""
    _accumulated(*inputs, factor=1.0, clear=True)


@accumulate.mistake("cleared, and divided", numbers=_lengths)
def _(*inputs: Any) -> None:
    """You divide by the number of parts, which is right. But `zero_grad` before the second half
    wipes out the first, so half of the second half's gradient is left. Clear once, before the
    first part."""
    _accumulated(*inputs, clear=True)


@accumulate.mistake("first half only", numbers=_lengths)
def _(*inputs: Any) -> None:
    """Only the first half of the batch has left a gradient. Did you return, or break off, within
    the loop? Each part needs its own forward pass and its own `backward`."""
    _accumulated(*inputs, stop=1)


@accumulate.mistake("cut along the text", numbers=_lengths)
def _(*inputs: Any) -> None:
    """You cut each window of {T} tokens in two, and still run {most} at once. The second half of a
    text then no longer sees the first. Cut the batch: `chunk(2)` along axis 0."""
    _accumulated(*inputs, axis=1)


@accumulate.mistake("the whole batch at once", numbers=_lengths)
def _(*inputs: Any) -> None:
    """Your gradient is right, but {most} windows went through the model in one pass, and there was
    room for half of them. Run the halves one after the other."""
    _accumulated(*inputs, factor=1.0, parts=1)


@accumulate.mistake("the step as well", numbers=lambda output, *_: {"moved": output[2]})
def _(model: Any, x: Any, y: Any) -> None:
    """The gradient is right, but {moved} tensors of weights have moved. Only gather gradients here:
    the optimizer's step comes once, after all parts, and is the caller's."""
    _accumulated(model, x, y)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


@accumulate.mistake("backward forgotten")
def _(model: Any, x: Any, y: Any) -> None:
    """No parameter has a gradient. A loss alone moves nothing: call `.backward()` on each part's
    loss, before the next part is run."""
    with torch.no_grad():
        model(x[: len(x) // 2])
