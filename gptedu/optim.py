"""How fast and in which direction to step: schedules, AdamW, Muon.

    warm-up    rate = peak (step + 1) / warmup            a first step of rate 0 would be wasted
    cosine     from peak to min_lr along half a wave      linear: along a straight line
    AdamW      w <- w - rate (m / (sqrt(v) + eps) + decay w),   m, v: debiased means of g and g^2
    Muon       W <- W - rate (orthogonal(M) + decay W),         M: Nesterov momentum of the gradient

AdamW scales each number by itself. Muon treats a matrix as a whole: it replaces the singular
values of the momentum by ones (nearly: five Newton-Schulz iterations in bf16), so that every
direction moves.

Chapter 9. AdamW: Loshchilov & Hutter 2019, algorithm 2. Warm-up: Goyal et al. 2017, section 2.2.
Cosine: Loshchilov & Hutter 2017, without its restarts. Muon: Jordan et al. 2024.
Left out: the inverse-square-root schedule of Vaswani et al. 2017, section 5.3.
"""

import math

import torch
from torch import nn

from gptedu.config import TrainConfig


def _fraction(config: TrainConfig, step: int) -> float:
    """The part of the peak rate that the update number `step` (from 0) uses."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    if config.schedule == "constant":
        return 1.0
    # The end is where a further step would stand: the last one still moves when min_lr is 0.
    progress = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
    fall = (1 + math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else 1 - progress
    floor = config.min_lr / config.lr if config.lr else 0.0
    return floor + (1 - floor) * fall


def learning_rate(config: TrainConfig, step: int) -> float:
    """AdamW's rate for the update number `step`, counted from 0."""
    return config.lr * _fraction(config, step)


def parameter_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The blocks' matrices, and all the rest: every parameter once, a tied head's included.

    Only the matrices decay, and only they suit Muon. A gain or a bias has no direction to shrink
    along. A row of the embedding is used when its token occurs: with decay, rare tokens would fade.
    """
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        inside = name.startswith("blocks.") and parameter.dim() == 2
        (matrices if inside else rest).append(parameter)
    return matrices, rest


def make_optimizers(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """AdamW alone, or Muon for the blocks' matrices and AdamW for the rest."""
    matrices, rest = parameter_groups(model)
    optimizers: list[torch.optim.Optimizer]
    if config.optimizer == "muon":
        muon = torch.optim.Muon(
            matrices,
            lr=config.muon_lr,
            momentum=0.95,
            weight_decay=config.weight_decay,
            adjust_lr_fn="original",
        )
        optimizers = [muon, torch.optim.AdamW(rest, config.lr, config.betas, weight_decay=0.0)]
    else:
        groups = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": rest, "weight_decay": 0.0},
        ]
        optimizers = [torch.optim.AdamW(groups, config.lr, config.betas)]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]  # the peak, named as torch's schedulers name it
    return optimizers


def set_learning_rate(
    optimizers: list[torch.optim.Optimizer], config: TrainConfig, step: int
) -> None:
    """Give every group its rate for the update number `step`: the same fraction of its own peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * _fraction(config, step)
