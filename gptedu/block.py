"""A block: attention moves information between positions, the MLP works on each.

Both read the residual stream, and add what they found to it:

    pre-norm:   x = x + attention(norm(x))       x = x + mlp(norm(x))
    post-norm:  x = norm(x + attention(x))       x = norm(x + mlp(x))

Chapter 6. Post-norm is Vaswani et al. 2017, section 3.1, and GPT-1; pre-norm is GPT-2 and all since
(Xiong et al. 2020 explain why it trains without warm-up).
"""

from jaxtyping import Float
from torch import Tensor, nn

from gptedu.cache import LayerCache
from gptedu.config import GPTConfig
from gptedu.dropout import Dropout
from gptedu.mlp import GATED, MLP, GatedMLP
from gptedu.multihead import MultiHeadAttention
from gptedu.norm import LayerNorm, RMSNorm


def make_norm(config: GPTConfig) -> LayerNorm | RMSNorm:
    """The config's normalisation, of width C."""
    if config.norm == "rmsnorm":
        return RMSNorm(config.d_model, config.norm_eps)
    return LayerNorm(config.d_model, bias=config.norm_bias, eps=config.norm_eps)


class Block(nn.Module):
    """One layer of the model: (B,T,C) -> (B,T,C)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = make_norm(config)
        self.attention = MultiHeadAttention(config)
        self.mlp_norm = make_norm(config)
        self.mlp = GatedMLP(config) if config.mlp in GATED else MLP(config)
        self.dropout = Dropout(config.dropout)
        self.pre_norm = config.norm_position == "pre"

    def forward(
        self, x: Float[Tensor, "B T C"], cache: LayerCache | None = None
    ) -> Float[Tensor, "B T C"]:
        if self.pre_norm:
            x = x + self.dropout(self.attention(self.attention_norm(x), cache))
            return x + self.dropout(self.mlp(self.mlp_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, cache)))
        return self.mlp_norm(x + self.dropout(self.mlp(x)))
