"""Multi-head attention: several heads side by side, each with its own question, mixed by W_O.

    head_h = attention(x W_q^h, x W_k^h, x W_v^h)          out = concat(head_1 .. head_H) W_o

Chapter 4. Vaswani et al. 2017, section 3.2.2. With fewer key and value heads than query heads it is
grouped-query attention (Ainslie et al. 2023), with one of them multi-query (Shazeer 2019).
Two kernels give the same numbers: `explicit` builds the weights, `fused` is torch's own.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from gptedu.attention import attention, causal_mask
from gptedu.cache import LayerCache
from gptedu.config import GPTConfig
from gptedu.norm import RMSNorm
from gptedu.rope import Rotary

KERNELS = ("explicit", "fused")


def split_heads(x: Float[Tensor, "B T HD"], n_head: int) -> Float[Tensor, "B H T D"]:
    """Cut the last axis into heads, then bring the heads forward; `view` alone mixes positions."""
    B, T, HD = x.shape
    return x.view(B, T, n_head, HD // n_head).transpose(1, 2)


def merge_heads(x: Float[Tensor, "B H T D"]) -> Float[Tensor, "B T HD"]:
    """The way back: the heads of a position stand side by side again."""
    return x.transpose(1, 2).flatten(2)


def repeat_heads(x: Float[Tensor, "B K T D"], n_head: int) -> Float[Tensor, "B H T D"]:
    """Give each key or value head to H / K query heads in a row."""
    copies = n_head // x.shape[1]
    return x if copies == 1 else x.repeat_interleave(copies, dim=1)


class ExplicitAttention(nn.Module):
    """The kernel of the book: its output holds the weights, so a hook on it can read them."""

    def __init__(self, dropout: float, window: int | None) -> None:
        super().__init__()
        self.dropout, self.window = dropout, window

    def forward(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B H S D"],
        v: Float[Tensor, "B H S D"],
    ) -> tuple[Float[Tensor, "B H T D"], Float[Tensor, "B H T S"]]:
        mask = causal_mask(q.shape[2], k.shape[2], self.window, q.device)
        return attention(q, k, v, mask, dropout=self.dropout if self.training else 0.0)


class FusedAttention(nn.Module):
    """torch's kernel: the same mixture, but the weights never exist."""

    def __init__(self, dropout: float, window: int | None) -> None:
        super().__init__()
        self.dropout, self.window = dropout, window

    def forward(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B H S D"],
        v: Float[Tensor, "B H S D"],
    ) -> tuple[Float[Tensor, "B H T D"], None]:
        T, S = q.shape[2], k.shape[2]
        square = T == S and self.window is None
        alone = T == 1 and self.window is None  # the last position sees everything
        mask = None if square or alone else causal_mask(T, S, self.window, q.device)
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=square), None


class MultiHeadAttention(nn.Module):
    """Causal self-attention with H heads: (B,T,C) -> (B,T,C).

    Attributes:
        kernel: "explicit", "fused", or None: the one that measured faster (explicit where a CPU
            trains in bf16 or with dropout, fused elsewhere).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        C, H, K, D = config.d_model, config.n_head, config.n_kv_head, config.head_dim
        self.n_head, self.n_kv_head, self.dropout = H, K, config.dropout
        self.query = nn.Linear(C, H * D, bias=config.qkv_bias)
        self.key = nn.Linear(C, K * D, bias=config.qkv_bias)
        self.value = nn.Linear(C, K * D, bias=config.qkv_bias)
        self.output = nn.Linear(H * D, C, bias=config.bias)
        self.query_norm = RMSNorm(D, config.norm_eps) if config.qk_norm else nn.Identity()
        self.key_norm = RMSNorm(D, config.norm_eps) if config.qk_norm else nn.Identity()
        rope = config.position == "rope"
        self.rotary = Rotary(config.context_length, D, config.rope_base) if rope else None
        self.explicit = ExplicitAttention(config.dropout, config.window)
        self.fused = FusedAttention(config.dropout, config.window)
        self.kernel: str | None = None

    def forward(
        self, x: Float[Tensor, "B T C"], cache: LayerCache | None = None
    ) -> Float[Tensor, "B T C"]:
        q = self.query_norm(split_heads(self.query(x), self.n_head))
        k = self.key_norm(split_heads(self.key(x), self.n_kv_head))
        v = split_heads(self.value(x), self.n_kv_head)
        if self.rotary is not None:
            start = cache.length if cache is not None else 0
            q, k = self.rotary(q, start), self.rotary(k, start)
        if cache is not None:
            k, v = cache.append(k, v)
        k, v = repeat_heads(k, self.n_head), repeat_heads(v, self.n_head)
        out, _ = self._choose(q)(q.to(v.dtype), k.to(v.dtype), v)
        return self.output(merge_heads(out))

    def _choose(self, q: Tensor) -> nn.Module:
        if self.kernel is not None:
            if self.kernel not in KERNELS:
                raise ValueError(
                    f"kernel={self.kernel!r} is not known; choose one of {KERNELS} or None"
                )
            return getattr(self, self.kernel)
        slow = torch.is_autocast_enabled("cpu") or (self.training and self.dropout > 0)
        trains_on_cpu = torch.is_grad_enabled() and q.device.type == "cpu"
        return self.explicit if trains_on_cpu and slow else self.fused
