"""How fast and in which direction to step: schedules, AdamW, Muon.

    warm-up    rate = peak (step + 1) / warmup            a first step of rate 0 would be wasted
    cosine     from peak to min_lr along half a wave      linear: along a straight line
    AdamW      w <- w - rate (m / (sqrt(v) + eps) + decay w),   m, v: debiased means of g and g^2
    Muon       W <- W - rate (orthogonal(M) + decay W),         M: Nesterov momentum of the gradient

AdamW scales each number by itself. Muon treats a matrix as a whole: it replaces the singular
values of the momentum by ones (nearly: five Newton-Schulz iterations in bf16), so that every
direction moves. It is written out here, because `torch.optim.Muon` takes one matrix after another:
with matrices as small as ours that was a third of a whole training step.

Chapter 9. AdamW: Loshchilov & Hutter 2019, algorithm 2. Warm-up: Goyal et al. 2017, section 2.2.
Cosine: Loshchilov & Hutter 2017, without its restarts. Muon: Jordan et al. 2024.
Left out: the inverse-square-root schedule of Vaswani et al. 2017, section 5.3.
"""

import math
from collections import defaultdict

import torch
from jaxtyping import Float
from torch import Tensor, nn

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


def orthogonal(matrices: Float[Tensor, "N R C"]) -> Float[Tensor, "N R C"]:
    """Each matrix with its singular values replaced by some between 0.68 and 1.21, in bf16.

    Five times X <- a X + (b A + c A^2) X with A = X X^T: it bends every singular value s of X to
    a s + b s^3 + c s^5, and leaves the directions alone. The three numbers are Jordan's: they let
    values swing about 1, and bring small ones up fast. (Under 0.3 % of the whole: not all the way.)
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT.bfloat16() if tall else matrices.bfloat16()  # the smaller X X^T of the two
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)  # now no singular value is above 1
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Moves matrices along their orthogonalised momentum; those of one shape are taken together.

    The step of a matrix with more rows than columns is longer by sqrt(rows / columns), so that the
    outputs of all matrices change alike.
    """

    def __init__(
        self, matrices: list[nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every matrix that has a gradient."""
        for group in self.param_groups:
            same: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for matrix in group["params"]:
                if (gradient := matrix.grad) is not None:
                    ahead = self._look_ahead(matrix, gradient, group["momentum"])
                    same[matrix.shape].append((matrix, ahead))
            shrink = 1 - group["lr"] * group["weight_decay"]
            for (rows, columns), pairs in same.items():
                ways = orthogonal(torch.stack([ahead for _, ahead in pairs]))
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                for (matrix, _), way in zip(pairs, ways, strict=True):
                    matrix.mul_(shrink).add_(way, alpha=-rate)

    def _look_ahead(self, matrix: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        """Nesterov's momentum: the running mean as it will be if this gradient comes again."""
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        mean: Tensor = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(mean, momentum)


def make_optimizers(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """AdamW alone, or Muon for the blocks' matrices and AdamW for the rest."""
    matrices, rest = parameter_groups(model)
    groups = [{"params": rest, "weight_decay": 0.0}]
    optimizers: list[torch.optim.Optimizer] = []
    if config.optimizer == "muon":
        optimizers.append(Muon(matrices, config.muon_lr, config.weight_decay))
    else:
        groups.insert(0, {"params": matrices, "weight_decay": config.weight_decay})
    optimizers.append(torch.optim.AdamW(groups, config.lr, config.betas, fused=True))
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
