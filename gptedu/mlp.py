"""The MLP: each position by itself goes through two or three matrices and one bend.

    MLP(x)      = down(f(up(x)))                     f = ReLU, GELU, or ReLU squared
    GatedMLP(x) = down(g(gate(x)) * up(x))           g = SiLU (SwiGLU) or GELU (GEGLU)

Chapter 5. Vaswani et al. 2017, section 3.3 (ReLU); Hendrycks and Gimpel 2016 (GELU; we use the tanh
form of its section 2, as GPT-2 does); So et al. 2021, section 4 (squared ReLU); Shazeer 2020
(gates).
"""

from collections.abc import Callable
from functools import partial

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from gptedu.config import GPTConfig

gelu = partial(F.gelu, approximate="tanh")


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0) squared."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": gelu,
    "relu2": squared_relu,
    "swiglu": F.silu,
    "geglu": gelu,
}
GATED = ("swiglu", "geglu")


class MLP(nn.Module):
    """Up, bend, down: (B,T,C) -> (B,T,C)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.mlp]

    def forward(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
        return self.down(self.activation(self.up(x)))


class GatedMLP(nn.Module):
    """One matrix opens and closes the units of another: (B,T,C) -> (B,T,C)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.up = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.mlp]

    def forward(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
        return self.down(self.activation(self.gate(x)) * self.up(x))
