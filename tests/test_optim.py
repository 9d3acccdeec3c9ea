"""Schedules against values worked out by hand; AdamW against Loshchilov & Hutter's formula written
with plain numbers; Muon against torch's, bit for bit, and against the singular values that its
update must have.
"""

import math
from copy import deepcopy

import pytest
import torch
from torch import nn

from gptedu.config import GPTConfig, TrainConfig
from gptedu.model import GPT
from gptedu.optim import (
    Muon,
    learning_rate,
    make_optimizers,
    orthogonal,
    parameter_groups,
    set_learning_rate,
)

TINY = GPTConfig.preset("tiny")


def rates(**words: object) -> list[float]:
    config = TrainConfig(**words)
    return [learning_rate(config, step) for step in range(config.steps)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"schedule": "constant", "warmup": 4}, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ({"schedule": "linear", "warmup": 4}, [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25]),
        (
            {"schedule": "linear", "warmup": 0, "min_lr": 0.2},
            [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3],
        ),
        (
            {"schedule": "cosine", "warmup": 4, "min_lr": 0.5},
            [0.25, 0.5, 0.75, 1, 1, 0.75 + math.sqrt(2) / 8, 0.75, 0.75 - math.sqrt(2) / 8],
        ),
    ],
)
def test_schedule_by_hand(words: dict, expected: list[float]) -> None:
    assert rates(lr=1.0, steps=8, **words) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 1), (2, 0), (5, 5), (5, 9), (50, 7)])
def test_every_step_moves_and_warm_up_only_rises(schedule: str, steps: int, warmup: int) -> None:
    values = rates(schedule=schedule, steps=steps, warmup=warmup, lr=0.1)
    assert all(0 < value <= 0.1 for value in values)
    rise, fall = values[:warmup], values[warmup:]
    assert rise == sorted(rise)
    assert fall == sorted(fall, reverse=True)


def test_schedule_ends_at_min_lr() -> None:
    config = TrainConfig(schedule="cosine", lr=0.3, min_lr=0.03, steps=10, warmup=2)
    assert learning_rate(config, 10) == pytest.approx(0.03)
    assert learning_rate(config, 99) == pytest.approx(0.03)


@pytest.mark.parametrize(
    "words", [{}, {"tie_embeddings": True}, {"norm": "rmsnorm", "bias": False}]
)
def test_every_parameter_is_in_exactly_one_group(words: dict) -> None:
    model = GPT(GPTConfig.preset("tiny", **words))
    matrices, rest = parameter_groups(model)
    grouped = [id(parameter) for parameter in matrices + rest]
    assert sorted(grouped) == sorted({id(parameter) for parameter in model.parameters()})
    assert sum(p.numel() for p in matrices) == 12 * TINY.n_layer * TINY.d_model**2
    assert any(parameter is model.head.weight for parameter in rest)
    for optimizer in ("adamw", "muon"):
        optimizers = make_optimizers(model, TrainConfig(optimizer=optimizer))
        moved = [p for o in optimizers for group in o.param_groups for p in group["params"]]
        assert sorted(map(id, moved)) == sorted(grouped)


def test_two_steps_of_adamw_by_the_formula() -> None:
    model = GPT(TINY)
    config = TrainConfig(
        lr=0.01, betas=(0.8, 0.95), weight_decay=0.3, schedule="constant", warmup=2
    )
    (optimizer,) = make_optimizers(model, config)
    matrices, rest = parameter_groups(model)
    watched = [(matrices[0], 0.3), (rest[0], 0.0)]
    expected = [parameter.detach().double().clone() for parameter, _ in watched]
    means = [(0.0, 0.0)] * len(watched)
    for step in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        set_learning_rate([optimizer], config, step)
        optimizer.step()
        rate = 0.01 * (step + 1) / 2
        for i, (parameter, decay) in enumerate(watched):
            g = parameter.grad.double()
            m = 0.8 * means[i][0] + 0.2 * g
            v = 0.95 * means[i][1] + 0.05 * g**2
            means[i] = (m, v)
            unbiased = m / (1 - 0.8 ** (step + 1)), v / (1 - 0.95 ** (step + 1))
            adam = unbiased[0] / (unbiased[1].sqrt() + 1e-8)
            expected[i] = expected[i] - rate * (adam + decay * expected[i])
    for (parameter, _), value in zip(watched, expected, strict=True):
        torch.testing.assert_close(parameter.double(), value, rtol=1e-5, atol=1e-7)


def test_muon_moves_every_direction_alike() -> None:
    model = GPT(TINY)
    config = TrainConfig(
        optimizer="muon", muon_lr=0.5, weight_decay=0.0, schedule="constant", warmup=0
    )
    optimizers = make_optimizers(model, config)
    set_learning_rate(optimizers, config, 0)
    matrices, _ = parameter_groups(model)
    before = [matrix.detach().clone() for matrix in matrices]
    for matrix in matrices:  # the strongest direction of the gradient is ten times the weakest
        u, _, v = torch.linalg.svd(torch.randn_like(matrix), full_matrices=False)
        matrix.grad = u * torch.logspace(0, -1, len(v)) @ v
    optimizers[0].step()
    for old, new in zip(before, matrices, strict=True):
        taller = max(1.0, new.shape[0] / new.shape[1]) ** 0.5
        values = torch.linalg.svdvals(old - new.detach()) / (0.5 * taller)
        assert values.min() > 0.6
        assert values.max() < 1.3


SHAPES = [(16, 16), (48, 16), (16, 40), (16, 16), (48, 16), (1, 5)]


def two_alike() -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    ours = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    return ours, [nn.Parameter(matrix.detach().clone()) for matrix in ours]


def step_alike(
    ours: list[nn.Parameter],
    theirs: list[nn.Parameter],
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer],
) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        mine.grad = torch.randn_like(mine)
        other.grad = mine.grad.clone()
    for optimizer in optimizers:
        optimizer.step()


def test_muon_takes_the_steps_of_torchs_and_goes_on_where_it_stopped() -> None:
    ours, theirs = two_alike()
    words = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9}
    muon = Muon(ours, **words)
    torchs = torch.optim.Muon(theirs, **words, adjust_lr_fn="original")
    for _ in range(4):
        step_alike(ours, theirs, (muon, torchs))
    assert all(mine.equal(other) for mine, other in zip(ours, theirs, strict=True))
    again = Muon(ours, **words)
    again.load_state_dict({**again.state_dict(), "state": deepcopy(torchs.state_dict()["state"])})
    step_alike(ours, theirs, (again, torchs))
    assert all(mine.equal(other) for mine, other in zip(ours, theirs, strict=True))


def test_muon_leaves_a_matrix_without_gradient() -> None:
    ours, before = two_alike()
    ours[1].grad = torch.randn_like(ours[1])
    Muon(ours, lr=0.1, weight_decay=0.1).step()
    moved = [not mine.equal(old) for mine, old in zip(ours, before, strict=True)]
    assert moved == [False, True, False, False, False, False]


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 24, 8), (2, 8, 24)])
def test_orthogonal_keeps_the_directions(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape) * 1e-3
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    found = u.mT @ orthogonal(matrices).float() @ v.mT
    torch.testing.assert_close(
        found, torch.diag_embed(found.diagonal(dim1=1, dim2=2)), atol=0.05, rtol=0
    )
    assert found.diagonal(dim1=1, dim2=2).max() < 1.3


def test_muon_follows_the_schedule_of_adamw() -> None:
    config = TrainConfig(optimizer="muon", lr=0.01, muon_lr=0.04, min_lr=0.001, warmup=2, steps=9)
    optimizers = make_optimizers(GPT(TINY), config)
    assert isinstance(optimizers[0], Muon)
    for step in range(9):
        set_learning_rate(optimizers, config, step)
        muon, adamw = (optimizer.param_groups[0]["lr"] for optimizer in optimizers)
        assert adamw == pytest.approx(learning_rate(config, step))
        assert muon == pytest.approx(4 * adamw)


def test_a_rate_of_zero_stays_zero() -> None:
    assert rates(lr=0.0, steps=3, warmup=0) == [0.0, 0.0, 0.0]


def test_rest_holds_no_matrix_of_a_block() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token_embedding = nn.Embedding(5, 4)
            self.blocks = nn.ModuleList([nn.Linear(4, 4)])

    model = Odd()
    matrices, rest = parameter_groups(model)
    assert [id(p) for p in matrices] == [id(model.blocks[0].weight)]
    assert {id(p) for p in rest} == {id(model.token_embedding.weight), id(model.blocks[0].bias)}
