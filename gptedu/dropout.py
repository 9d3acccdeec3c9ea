"""Dropout: in training each number is set to zero with probability p, and the rest grow to match.

    dropout(x) = x keep / (1 - p)                    keep: 1 with probability 1 - p, else 0

Chapter 5. Srivastava et al. 2014, section 4; they shrink the weights after training instead. torch
draws a whole random number for every decision, in one thread on a processor, and that was a third
of a training step. Here one number of 64 bits decides for four.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


def dropout(x: Float[Tensor, "*n"], p: float) -> Float[Tensor, "*n"]:
    """Drop at random, with p rounded to a multiple of 1/65536; the mean of each number stays.

    Args:
        p: probability, at least 0 and under 1.
    """
    if x.device.type != "cpu":
        return F.dropout(x, p)  # graphics cards draw in parallel
    dropped = min(round(p * 65536), 65535)  # so many of the 65536 values of 16 bits
    drawn = torch.randint(-(2**63), 2**63 - 1, (x.numel() // 4 + 1,))
    keep = drawn.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - 32768
    return torch.where(keep, x, 0) * (65536 / (65536 - dropped))


class Dropout(nn.Module):
    """`dropout` in training, nothing in evaluation."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return dropout(x, self.p) if self.training and self.p else x
