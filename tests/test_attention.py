"""Attention against torch's kernel, a loop over single numbers, and the properties of theory."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gptedu.attention import Head, attention, causal_mask


@pytest.fixture
def qkv():
    return torch.randn(3, 2, 4, 7, 8).unbind(0)


def test_mask_of_four_by_hand():
    assert causal_mask(4).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_mask_of_the_last_queries():
    assert causal_mask(2, 4).equal(causal_mask(4)[2:])


def test_window_by_hand():
    assert causal_mask(4, window=2).int().tolist() == [
        [1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1],
    ]  # fmt: skip


@pytest.mark.parametrize(("T", "S", "window"), [(3, 2, None), (0, None, None), (3, None, 0)])
def test_impossible_masks_are_explained(T, S, window):
    with pytest.raises(ValueError, match=r"queries|window"):
        causal_mask(T, S, window)


@pytest.mark.parametrize("mask", [None, causal_mask(7), causal_mask(7, window=3)])
def test_equals_torch(qkv, mask):
    out, _ = attention(*qkv, mask)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(*qkv, attn_mask=mask))


def test_causal_equals_torchs_is_causal(qkv):
    out, _ = attention(*qkv, causal_mask(7))
    torch.testing.assert_close(out, F.scaled_dot_product_attention(*qkv, is_causal=True))


def test_own_scale_equals_torch(qkv):
    out, _ = attention(*qkv, scale=0.3)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(*qkv, scale=0.3))


def test_equals_a_loop_over_numbers():
    q, k, v = torch.randn(3, 1, 5, 4, dtype=torch.float64).unbind(0)
    out, weights = attention(q, k, v, causal_mask(5))
    for t in range(5):
        scores = [
            sum(q[0, t, d] * k[0, s, d] for d in range(4)) / math.sqrt(4) for s in range(t + 1)
        ]
        total = sum(math.exp(x) for x in scores)
        expected = [math.exp(x) / total for x in scores] + [0.0] * (4 - t)
        torch.testing.assert_close(weights[0, t], torch.tensor(expected, dtype=torch.float64))
        torch.testing.assert_close(out[0, t], sum(w * v[0, s] for s, w in enumerate(expected)))


def test_rows_sum_to_one_and_the_future_weighs_nothing(qkv):
    _, weights = attention(*qkv, causal_mask(7))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 7))
    assert weights[..., ~causal_mask(7)].eq(0).all()


def test_without_mask_the_order_of_keys_does_not_matter(qkv):
    q, k, v = qkv
    order = torch.randperm(7)
    out, weights = attention(q, k, v)
    shuffled, shuffled_weights = attention(q, k[:, :, order], v[:, :, order])
    torch.testing.assert_close(out, shuffled)
    torch.testing.assert_close(weights[..., order], shuffled_weights)


def test_a_row_that_sees_nothing_is_nan(qkv):
    mask = causal_mask(7).clone()
    mask[3] = False
    out, _ = attention(*qkv, mask)
    assert out[:, :, 3].isnan().all()
    assert not out[:, :, [0, 1, 2, 4, 5, 6]].isnan().any()


def test_dropout_keeps_the_mean(qkv):
    q, k, _ = qkv
    ones = torch.ones(2, 4, 7, 8)
    mean = sum(attention(q, k, ones, dropout=0.5)[0].mean() for _ in range(200)) / 200
    assert mean.item() == pytest.approx(1.0, abs=0.05)


def test_values_may_have_another_width():
    q, k, v = torch.randn(1, 3, 4), torch.randn(1, 5, 4), torch.randn(1, 5, 6)
    out, weights = attention(q, k, v)
    assert out.shape == (1, 3, 6)
    assert weights.shape == (1, 3, 5)


def test_head_equals_multihead_attention_of_torch():
    head, torchs = Head(6, 6), nn.MultiheadAttention(6, 1, bias=False, batch_first=True)
    with torch.no_grad():
        torchs.in_proj_weight.copy_(
            torch.cat((head.query.weight, head.key.weight, head.value.weight))
        )
        torchs.out_proj.weight.copy_(torch.eye(6))
    x = torch.randn(2, 5, 6)
    expected, _ = torchs(x, x, x, attn_mask=~causal_mask(5))  # True hides, there
    torch.testing.assert_close(head(x), expected)
