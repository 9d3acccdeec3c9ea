"""The exercises of the chapter on heads: right answers of another make pass (torch's layer, its
kernel for shared keys, einsum, chunks), and wrong ones are told their own numbers.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptedu import check


def test_right_cuts_without_view() -> None:
    def chunks(x: Tensor, n_head: int) -> Tensor:
        return torch.stack(x.chunk(n_head, dim=-1), dim=1)

    def joined(x: Tensor) -> Tensor:
        return torch.cat(x.unbind(1), dim=-1)

    assert check.split_heads.diagnose(chunks)
    assert check.merge_heads.diagnose(joined)


def test_torchs_own_layer_passes() -> None:
    def torchs(
        x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, W_o: Tensor, n_head: int
    ) -> Tensor:
        T, C = x.shape[1:]
        layer = nn.MultiheadAttention(C, n_head, bias=False, batch_first=True)
        future = torch.ones(T, T).triu(1).bool()
        with torch.no_grad():
            layer.in_proj_weight.copy_(torch.cat([W_q.T, W_k.T, W_v.T]))
            layer.out_proj.weight.copy_(W_o.T)
            return layer(x, x, x, attn_mask=future)[0]

    assert check.multihead.diagnose(torchs)


def test_a_list_of_heads_passes() -> None:
    def listed(x: Tensor, *matrices: Tensor | int) -> Tensor:
        *projections, W_o, n_head = matrices
        parts = zip(*(W.chunk(n_head, dim=1) for W in projections), strict=True)
        heads = [
            F.scaled_dot_product_attention(x @ q, x @ k, x @ v, is_causal=True) for q, k, v in parts
        ]
        return torch.cat(heads, dim=-1) @ W_o

    assert check.multihead.diagnose(listed)


def test_what_heads_write_by_silencing_the_others() -> None:
    def by_silencing(heads: Tensor, W_o: Tensor) -> Tensor:
        alone = torch.eye(heads.shape[1])[:, None, :, None, None] * heads  # (H, B, H, T, D)
        writes = [one.transpose(1, 2).flatten(2) @ W_o for one in alone]
        return torch.stack(writes, dim=1)

    assert check.head_writes.diagnose(by_silencing)


def test_shared_keys_by_torch_and_by_broadcasting() -> None:
    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def broadcast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T, D = q.shape[2:]
        q = q.unflatten(1, (k.shape[1], -1))
        scores = torch.einsum("bkgtd,bksd->bkgts", q, k) / D**0.5
        hidden = torch.ones(T, T).triu(1).bool()
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("bkgts,bksd->bkgtd", weights, v).flatten(1, 2)

    assert check.grouped_attention.diagnose(fused)
    assert check.grouped_attention.diagnose(broadcast)


def test_the_readers_own_numbers_are_shown() -> None:
    verdict = check.split_heads.diagnose(lambda x, H: x.reshape(len(x), H, x.shape[1], -1))
    assert verdict.mistake == "view without transpose"
    # 1 for the text, then position and column: 115 to 118 are the rest of the first position
    assert "first head holds 115 116 117 118; it should hold 121 122 123 124" in verdict.message

    def tiled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (torch.cat([x] * (q.shape[1] // x.shape[1]), dim=1) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    verdict = check.grouped_attention.diagnose(tiled)
    assert verdict.mistake == "key heads tiled"
    assert "by the key heads 1 2 1 2 1 2; they should be served by 1 1 1 2 2 2" in verdict.message


@pytest.mark.parametrize("seed", [0, 1])
def test_an_unknown_mistake_gets_the_first_difference(seed: int) -> None:
    noise = torch.randn(1, generator=torch.Generator().manual_seed(seed))
    verdict = check.merge_heads.diagnose(lambda x: x.transpose(1, 2).flatten(2) + noise)
    assert (verdict.passed, verdict.mistake) == (False, None)
    assert "`merged[0, 0, 0]` is" in verdict.message
