"""Multi-head attention against torch's module and a list of heads; both kernels agree."""

import pytest
import torch
from torch import nn

from gptedu.attention import Head, causal_mask
from gptedu.config import GPTConfig
from gptedu.multihead import MultiHeadAttention, merge_heads, repeat_heads, split_heads

X = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(1))


def make(**words):
    return MultiHeadAttention(GPTConfig.preset("tiny", n_head=4, **words))


def test_split_by_hand():
    x = torch.arange(12).reshape(1, 3, 4).float()
    assert split_heads(x, 2)[0].tolist() == [
        [[0, 1], [4, 5], [8, 9]],
        [[2, 3], [6, 7], [10, 11]],
    ]
    assert merge_heads(split_heads(x, 2)).equal(x)
    assert not x.view(1, 2, 3, 2).equal(split_heads(x, 2))  # the well-known mistake


def test_equals_torchs_module():
    ours = make()
    theirs = nn.MultiheadAttention(32, 4, batch_first=True)
    with torch.no_grad():
        three = (ours.query, ours.key, ours.value)
        theirs.in_proj_weight.copy_(torch.cat([m.weight for m in three]))
        theirs.in_proj_bias.copy_(torch.cat([m.bias for m in three]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    expected, _ = theirs(X, X, X, attn_mask=~causal_mask(9))
    torch.testing.assert_close(ours(X), expected)


def test_equals_a_list_of_heads():
    ours = make(bias=False)
    heads = [Head(32, 8) for _ in range(4)]
    with torch.no_grad():
        for i, head in enumerate(heads):
            for name in ("query", "key", "value"):
                weight = getattr(ours, name).weight[8 * i : 8 * i + 8]
                getattr(head, name).weight.copy_(weight)
    joined = torch.cat([head(X) for head in heads], dim=-1)
    torch.testing.assert_close(ours(X), ours.output(joined))


@pytest.mark.parametrize("n_kv_head", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("position", ["learned", "rope"])
def test_both_kernels_give_the_same(n_kv_head, window, position):
    module = make(n_kv_head=n_kv_head, window=window, position=position, qk_norm=True)
    results = []
    for module.kernel in ("explicit", "fused"):
        x = X.clone().requires_grad_()
        out = module(x)
        out.square().sum().backward()
        results.append((out, x.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n_kv_head", [1, 2])
def test_grouped_queries_equal_full_heads_with_copied_keys(n_kv_head):
    grouped, full = make(n_kv_head=n_kv_head), make()
    with torch.no_grad():
        full.query.load_state_dict(grouped.query.state_dict())
        full.output.load_state_dict(grouped.output.state_dict())
        for name in ("key", "value"):
            for part in ("weight", "bias"):
                small = getattr(getattr(grouped, name), part).view(n_kv_head, 8, -1)
                copied = small.repeat_interleave(4 // n_kv_head, dim=0)
                target = getattr(getattr(full, name), part)
                target.copy_(copied.reshape(target.shape))
    torch.testing.assert_close(grouped(X), full(X))


def test_repeated_heads_stand_together():
    x = torch.arange(2.0).view(1, 2, 1, 1)
    assert repeat_heads(x, 4).flatten().tolist() == [0.0, 0.0, 1.0, 1.0]


def test_window_one_returns_the_own_value():
    module = make(window=1)
    torch.testing.assert_close(module(X), module.output(module.value(X)))


def test_dropout_only_in_training():
    module = make(dropout=0.5)
    for module.kernel in ("explicit", "fused"):
        module.train()
        assert not module(X).equal(module(X))
        module.eval()
        assert module(X).equal(module(X))


def test_an_unknown_kernel_is_explained():
    module = make()
    module.kernel = "flash"
    with pytest.raises(ValueError, match="kernel='flash' is not known"):
        module(X)
