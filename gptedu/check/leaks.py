"""Does the future leak into the past? Two independent looks at a model.

    perturbation: change the token at position j; no output before j may move.
    gradient:     no output at position i may depend on the embedding of a token after i.

Chapter 3. A model that sees the token that it shall predict reaches a loss too good to be true, and
writes garbage. The first look finds every leak that is large enough to see; the second sees the
smallest too, but needs an `nn.Embedding` to start from.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gptedu.check.report import Report, show

TOPIC = "causal"
TOLERANCE = 1e-5  # of the largest logit, or of the largest gradient: below is rounding


def causal(model: Callable[[Tensor], Any], ids: Tensor | None = None) -> Report:
    """Check that no output moves when a later token changes. Shows the verdict, returns it.

    The wiring is judged, not the weights: a module is copied, put in evaluation mode, and where a
    matrix is all zero (as some models start) it is filled in the copy, so that a leak cannot hide.

    Args:
        model: ids (B, T) -> logits (B, T, ...), or a tuple that starts with them; any module or
            function.
        ids: one text to probe with, (1, T). None: random tokens, where the vocabulary is known from
            `model.config` or from an `nn.Embedding`.
    """
    return show(diagnose(model, ids))


def diagnose(model: Callable[[Tensor], Any], ids: Tensor | None = None) -> Report:
    """The verdict of `causal`, not shown."""
    ids, vocab_size = _probe(model, ids)
    model = _awake(model)
    with torch.no_grad():
        once, again = _logits(model, ids), _logits(model, ids)
    if (once - again).abs().max() > TOLERANCE * once.abs().max():
        message = (
            "The model gives two answers to the same input, so nothing can be said about leaks; "
            "find the chance first. Is a dropout still on in evaluation mode?"
        )
        return Report(TOPIC, False, "two answers", message)
    moved = _perturb(model, ids, vocab_size)
    T = ids.shape[1]
    if not moved.any():
        message = (
            "No output moves when any token changes, so nothing can be said of later ones. Does "
            "the model read its ids? Or are its outputs NaN? An inverted mask does that: it leaves "
            "the last position nothing to see."
        )
        return Report(TOPIC, False, "nothing moves", message)
    slopes = _differentiate(model, ids)
    leaks = moved.triu(1) if slopes is None else torch.maximum(moved.triu(1), slopes.triu(1))
    how = "perturbation only: no `nn.Embedding` reads the ids" if slopes is None else "both looks"
    if not leaks.any():
        message = f"No output moves when a later token changes ({how}, {T} positions)."
        return Report(TOPIC, True, None, message)
    i, j = leaks.nonzero()[0].tolist()
    gradient = "" if slopes is None else f" The gradient is {slopes[i, j].item():.2g}."
    far = f"{moved[i, j].item():.2g}" if moved[i, j] else "less than rounding"
    message = (
        f"The output at position {i} moves by {far} when the token at position {j} changes, which "
        f"comes later.{gradient} Both must be 0. Of {T * (T - 1) // 2} such pairs, "
        f"{int((leaks > 0).sum())} leak. Look at the mask: is it there, before the softmax, the "
        "right way round, minus infinity where hidden? If it is in order, look for anything else "
        "that mixes positions, such as a norm over the wrong axes."
    )
    return Report(TOPIC, False, "the future leaks", message)


def _probe(model: Any, ids: Tensor | None) -> tuple[Tensor, int]:
    """One text of at least two tokens, and the size of the vocabulary."""
    config = getattr(model, "config", None)
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    tables = [module.num_embeddings for module in modules if isinstance(module, nn.Embedding)]
    known = getattr(config, "vocab_size", None) or next(iter(tables), None)
    if ids is None:
        if known is None:
            raise ValueError(
                "the vocabulary is not known: the model has neither config.vocab_size nor an "
                "nn.Embedding; give a text, check.causal(model, ids) with ids of shape (1, T)"
            )
        # Where the context is not known, the smallest table may be that of the positions.
        T = min(getattr(config, "context_length", None) or min(tables, default=16), 24)
        ids = torch.randint(known, (1, T), generator=torch.Generator().manual_seed(0))
    vocab_size = known or int(ids.max()) + 1
    if ids.ndim != 2 or len(ids) != 1 or ids.shape[1] < 2 or vocab_size < 2:
        raise ValueError(
            f"one text of at least two tokens, (1, T), and two kinds of tokens are needed to see a "
            f"leak; ids have the shape {tuple(ids.shape)}, the vocabulary has {vocab_size}"
        )
    return ids.cpu(), vocab_size


def _awake(model: Any) -> Any:
    """A copy on the CPU, in evaluation mode, no matrix all zero; a bare function as it is."""
    if not isinstance(model, nn.Module):
        return model
    model = copy.deepcopy(model).cpu().eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1 and not weight.any():
                weight.copy_(0.1 * torch.randn(weight.shape, generator=draw))
    return model


def _logits(model: Any, ids: Tensor) -> Tensor:
    output = model(ids)
    logits = output[0] if isinstance(output, tuple) else output
    return torch.nan_to_num(logits, nan=0.0)  # a row that sees nothing must not hide the others


@torch.no_grad()
def _perturb(model: Any, ids: Tensor, vocab_size: int) -> Tensor:
    """(T, T): how far the output at i moves when the token at j changes; rounding counts as 0."""
    T = ids.shape[1]
    changed = (ids + torch.eye(T, dtype=ids.dtype)) % vocab_size  # row j: token j is another one
    logits = _logits(model, torch.cat([ids, changed])).flatten(2)
    moved = (logits[1:] - logits[:1]).abs().amax(-1).T
    return moved.where(moved > TOLERANCE * logits.abs().max(), 0.0)


def _differentiate(model: Any, ids: Tensor) -> Tensor | None:
    """(T, T): gradient of the output at i with respect to the embedding at j, or None."""
    if not isinstance(model, nn.Module):
        return None
    leaves: list[Tensor] = []

    def cut(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if leaves or not args or args[0].shape != ids.shape:
            return None
        leaves.append(output.detach().requires_grad_())
        return leaves[0]

    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    hooks = [module.register_forward_hook(cut) for module in tables]
    try:
        with torch.enable_grad():
            logits = _logits(model, ids)[0].flatten(1)  # (T,V)
    finally:
        for hook in hooks:
            hook.remove()
    if not leaves or not logits.requires_grad:
        return None
    # A random direction: the plain sum of logits after a norm can have no gradient at all.
    direction = torch.randn(logits.shape[1], generator=torch.Generator().manual_seed(1))
    with torch.enable_grad():  # the caller may have turned it off
        outs = (logits @ direction).unbind()
    rows = [torch.autograd.grad(out, leaves[0], retain_graph=True)[0] for out in outs]
    slopes = torch.stack(rows)[:, 0].norm(dim=-1).nan_to_num(nan=0.0)
    return slopes.where(slopes > TOLERANCE * slopes.max(), 0.0)
