"""Batches: windows cut from one long line of ids, each with the ids that follow as its targets.

    x = ids[s : s + T]      y = ids[s + 1 : s + T + 1]      T predictions from each window

Chapters 1 and 9. Three orders: windows at random places; epochs in which each window comes once;
from front to back, which counts every target once (for evaluation).

Left out: documents and their borders, padding, data that do not fit into memory.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain

import numpy
import torch
from jaxtyping import Int, Int64, Integer
from torch import Tensor

WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
Batch = tuple[Int64[Tensor, "B T"], Int64[Tensor, "B T"]]


def split(
    ids: Integer[Tensor, " N"], fraction: float = 0.9
) -> tuple[Integer[Tensor, " A"], Integer[Tensor, " B"]]:
    """Training part and validation part: the first `fraction` of the ids, and the rest.

    The rest comes last, not from anywhere: neighbours of a training window would tell its answers.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must lie between 0 and 1, got {fraction}")
    _check(ids)
    border = int(fraction * len(ids))
    return ids[:border], ids[border:]


def windows(ids: Integer[Tensor, " N"], starts: Int[Tensor, " B"], context_length: int) -> Batch:
    """x and y (B, T): the windows that begin at `starts`, and the same one place further on."""
    _check(ids, context_length)
    last = len(ids) - context_length - 1
    if len(starts) and not 0 <= int(starts.min()) <= int(starts.max()) <= last:
        raise ValueError(
            f"starts must lie in 0 to {last} for {len(ids):,} ids and a context of "
            f"{context_length}, got {int(starts.min())} to {int(starts.max())}"
        )
    places = starts[:, None] + torch.arange(context_length + 1, device=starts.device)
    chunks = ids[places.to(ids.device)].long()
    return chunks[:, :-1].contiguous(), chunks[:, 1:].contiguous()


def random_batch(
    ids: Integer[Tensor, " N"], batch_size: int, context_length: int, generator: torch.Generator
) -> Batch:
    """`batch_size` windows from anywhere; one may come twice, and windows may overlap."""
    _check(ids, context_length, batch_size)
    starts = torch.randint(
        len(ids) - context_length, (batch_size,), generator=generator, device=generator.device
    )
    return windows(ids, starts, context_length)


def windows_per_epoch(ids: Integer[Tensor, " N"], context_length: int) -> int:
    """How many windows, side by side, fit into `ids` whatever the offset of the first."""
    _check(ids, context_length)
    return max(1, len(ids) // context_length - 1)


def epoch_batch(
    ids: Integer[Tensor, " N"], batch_size: int, context_length: int, seed: int, step: int
) -> Batch:
    """The batch of one step, where each epoch shows each of its windows once.

    An epoch moves the first window by a random offset, cuts windows side by side from there and
    shuffles them; a batch at its end is filled up from the next epoch. What comes at which step
    depends on nothing but the seed: a run that was stopped goes on with its step alone.
    """
    _check(ids, context_length, batch_size)
    if seed < 0 or step < 0:
        raise ValueError(f"seed and step must not be negative, got {seed} and {step}")
    n_windows = windows_per_epoch(ids, context_length)
    offsets = min(context_length, len(ids) - n_windows * context_length)
    first, end = step * batch_size, (step + 1) * batch_size
    shown = range(first // n_windows, (end - 1) // n_windows + 1)
    order = torch.cat([_epoch(n_windows, context_length, offsets, seed, epoch) for epoch in shown])
    skipped = first % n_windows
    return windows(ids, order[skipped : skipped + batch_size], context_length)


@lru_cache(maxsize=4)  # a permutation for each epoch, not for each step
def _epoch(n_windows: int, context_length: int, offsets: int, seed: int, epoch: int) -> Tensor:
    random = numpy.random.default_rng([seed, epoch])
    offset = int(random.integers(offsets))
    return torch.from_numpy(offset + context_length * random.permutation(n_windows))


def contiguous_batches(
    ids: Integer[Tensor, " N"], batch_size: int, context_length: int
) -> Iterator[Batch]:
    """Windows from front to back: all N - 1 targets, each once.

    The last full batch may have fewer rows; what is left over after the last full window comes by
    itself, as one shorter row.
    """
    _check(ids, context_length, batch_size)
    n_windows, left = divmod(len(ids) - 1, context_length)
    starts = torch.arange(n_windows) * context_length
    full = (windows(ids, some, context_length) for some in starts.split(batch_size))
    tail = (windows(ids, torch.tensor([len(ids) - 1 - left]), left) for _ in range(left > 0))
    return chain(full, tail)


def _check(ids: object, context_length: int = 1, batch_size: int = 1) -> None:
    if not isinstance(ids, Tensor) or ids.dim() != 1 or ids.dtype not in WHOLE:
        got = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids)
        raise ValueError(f"ids must be a tensor of whole numbers in one row, got {got}")
    if context_length < 1 or batch_size < 1:
        raise ValueError(
            f"context_length and batch_size must be at least 1, got {context_length} and "
            f"{batch_size}"
        )
    if len(ids) <= context_length:
        raise ValueError(
            f"the text is too short: {len(ids):,} ids, but a context of {context_length} with its "
            f"targets needs {context_length + 1}. Take a longer text or a smaller context_length"
        )
