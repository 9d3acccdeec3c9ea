"""Batches: against windows cut by a plain Python loop, as tutorials do, and by counting targets."""

from inspect import unwrap

import pytest
import torch
from torch import Tensor

from gptedu import batches
from gptedu.batches import (
    contiguous_batches,
    epoch_batch,
    random_batch,
    split,
    windows,
    windows_per_epoch,
)


def cut(ids: Tensor, starts: list[int], length: int) -> tuple[Tensor, Tensor]:
    """The reference: one slice a row, stacked."""
    x = torch.stack([ids[s : s + length] for s in starts])
    y = torch.stack([ids[s + 1 : s + length + 1] for s in starts])
    return x, y


def assert_same(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == torch.int64
        assert a.is_contiguous()
        assert torch.equal(a, b.long())


def some_ids(length: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(65, (length,), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_windows_are_slices(dtype: torch.dtype) -> None:
    ids, starts = some_ids(50, dtype), [0, 7, 7, 41, 3]
    assert_same(windows(ids, torch.tensor(starts), 8), cut(ids, starts, 8))


@pytest.mark.parametrize("start", [-1, 42])
def test_windows_do_not_wrap_round(start: int) -> None:
    with pytest.raises(ValueError, match=f"0 to 41 for 50 ids.* of 8, got {min(start, 5)}"):
        windows(some_ids(50), torch.tensor([5, start]), 8)


def test_split_is_ninety_ten_in_order() -> None:
    ids = some_ids(1_115_394)  # as long as Tiny Shakespeare
    train, val = split(ids)
    assert (len(train), len(val)) == (1_003_854, 111_540)
    assert torch.equal(torch.cat([train, val]), ids)
    assert [len(part) for part in split(ids[:10], 0.25)] == [2, 8]


@pytest.mark.parametrize("fraction", [0.0, 1.0, 90.0, -0.1, float("nan")])
def test_split_needs_a_fraction(fraction: float) -> None:
    with pytest.raises(ValueError, match=f"between 0 and 1, got {fraction}"):
        split(some_ids(10), fraction)


def test_random_batch_is_the_tutorials() -> None:
    ids = some_ids(300)
    ours = random_batch(ids, 6, 16, torch.Generator().manual_seed(3))
    starts = torch.randint(300 - 16, (6,), generator=torch.Generator().manual_seed(3))
    assert_same(ours, cut(ids, starts.tolist(), 16))


def test_random_batch_follows_its_generator_only() -> None:
    ids, generator = some_ids(300), torch.Generator().manual_seed(3)
    first = random_batch(ids, 6, 16, generator)
    second = random_batch(ids, 6, 16, generator)
    torch.manual_seed(9)
    assert_same(random_batch(ids, 6, 16, torch.Generator().manual_seed(3)), first)
    assert not torch.equal(first[0], second[0])


def test_random_batch_reaches_every_window() -> None:
    x, _ = random_batch(torch.arange(12), 500, 4, torch.Generator().manual_seed(0))
    assert set(x[:, 0].tolist()) == set(range(12 - 4))


@pytest.mark.parametrize("length", [9, 10, 15, 16, 17, 23, 24, 25, 100, 1001])
def test_an_epoch_shows_each_window_once(length: int) -> None:
    ids, count = torch.arange(length), windows_per_epoch(torch.arange(length), 8)
    assert count == max(1, (length - 8) // 8)
    offsets = set()
    for epoch in range(20):
        x, y = epoch_batch(ids, count, 8, seed=5, step=epoch)
        starts = sorted(x[:, 0].tolist())
        offsets.add(starts[0])
        assert starts == [starts[0] + 8 * n for n in range(count)]
        assert_same((x, y), cut(ids, x[:, 0].tolist(), 8))
    assert offsets <= set(range(8))
    assert len(offsets) > 1 or length == 9  # 9 ids leave one window and no choice
    if length >= 100:
        assert len(offsets) >= 6


@pytest.mark.parametrize("batch_size", [1, 2, 5, 11, 12, 30])
def test_batches_of_every_size_walk_the_same_line(batch_size: int) -> None:
    ids = torch.arange(100)  # 11 windows an epoch: most sizes do not divide it
    steps = 66 // batch_size
    walked = torch.cat([epoch_batch(ids, batch_size, 8, 1, step)[0] for step in range(steps)])
    line = torch.cat([epoch_batch(ids, 11, 8, 1, epoch)[0] for epoch in range(6)])
    assert torch.equal(walked, line[: len(walked)])


def test_epoch_batch_depends_on_seed_and_step_alone() -> None:
    ids = some_ids(500)
    there = [epoch_batch(ids, 4, 8, 2, step)[0] for step in range(60)]
    torch.manual_seed(77)
    batches._epoch.cache_clear()
    for step in (59, 0, 31, 16):
        assert torch.equal(epoch_batch(ids, 4, 8, 2, step)[0], there[step])
    assert not torch.equal(epoch_batch(ids, 4, 8, 3, 0)[0], there[0])
    first, second = epoch_batch(ids, 61, 8, 2, 0)[0], epoch_batch(ids, 61, 8, 2, 1)[0]
    assert not torch.equal(first, second)
    # Seed and epoch are two numbers, not a sum.
    assert not torch.equal(epoch_batch(ids, 61, 8, 1, 1)[0], second)


@pytest.mark.parametrize("length", [9, 10, 16, 17, 32, 33, 34, 64, 100])
@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_contiguous_batches_count_every_target_once(length: int, batch_size: int) -> None:
    ids = torch.arange(length)
    found = list(contiguous_batches(ids, batch_size, 8))
    assert torch.cat([x.flatten() for x, _ in found]).tolist() == list(range(length - 1))
    assert torch.cat([y.flatten() for _, y in found]).tolist() == list(range(1, length))
    full, left = divmod(length - 1, 8)
    sizes = [min(batch_size, full - row) for row in range(0, full, batch_size)]
    expected = [(size, 8) for size in sizes] + [(1, left)] * (left > 0)
    assert [tuple(x.shape) for x, _ in found] == expected


# Without the shape checker that only the tests switch on: what a reader sees.
CALLS = {
    "windows": lambda ids, B, T: unwrap(windows)(ids, torch.zeros(B, dtype=torch.int64), T),
    "random": lambda ids, B, T: unwrap(random_batch)(ids, B, T, torch.Generator()),
    "epoch": lambda ids, B, T: unwrap(epoch_batch)(ids, B, T, 0, 0),
    "contiguous": lambda ids, B, T: unwrap(contiguous_batches)(ids, B, T),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_cannot_be_cut_is_refused_at_once(name: str) -> None:
    call = CALLS[name]
    call(torch.arange(9), 2, 8)
    with pytest.raises(ValueError, match=r"too short: 8 ids.* of 8 .* needs 9.* smaller context"):
        call(torch.arange(8), 2, 8)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        call(torch.arange(9), 2, 0)
    with pytest.raises(ValueError, match=r"one row, got torch.float32 of shape \(9,\)"):
        call(torch.arange(9.0), 2, 8)
    with pytest.raises(ValueError, match=r"one row, got torch.int64 of shape \(3, 3\)"):
        call(torch.arange(9).view(3, 3), 2, 8)
    with pytest.raises(ValueError, match="bool of shape"):
        call(torch.ones(9, dtype=torch.bool), 2, 8)
    with pytest.raises(ValueError, match=r"tensor of whole numbers in one row, got <class 'list'>"):
        call(list(range(9)), 2, 8)
    if name != "windows":
        with pytest.raises(ValueError, match="at least 1, got 8 and 0"):
            call(torch.arange(9), 0, 8)


def test_split_refuses_too_little() -> None:
    with pytest.raises(ValueError, match="too short: 1 ids"):
        split(torch.arange(1))
    with pytest.raises(ValueError, match="one row"):
        unwrap(split)(torch.arange(4.0))


@pytest.mark.parametrize(("seed", "step"), [(-1, 0), (0, -1)])
def test_epoch_batch_refuses_negative_numbers(seed: int, step: int) -> None:
    with pytest.raises(ValueError, match=f"must not be negative, got {seed} and {step}"):
        epoch_batch(torch.arange(50), 2, 8, seed, step)
