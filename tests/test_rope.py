"""Rotary positions against complex multiplication, Hugging Face's Llama, and their one property."""

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from gptedu.rope import Rotary, rotate, rotation_angles


def test_equals_multiplication_by_complex_numbers():
    x = torch.randn(1, 2, 6, 8)
    angles = rotation_angles(torch.arange(6), 8)
    turned = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(Rotary(6, 8)(x), torch.cat((turned.real, turned.imag), -1))


def test_equals_llamas():
    q, k = torch.randn(2, 1, 2, 6, 8).unbind(0)
    angles = rotation_angles(torch.arange(6), 8, base=500.0)
    both = torch.cat((angles, angles), -1)[None]
    expected_q, expected_k = apply_rotary_pos_emb(q, k, both.cos(), both.sin())
    rotary = Rotary(6, 8, base=500.0)
    torch.testing.assert_close(rotary(q), expected_q)
    torch.testing.assert_close(rotary(k), expected_k)


def test_scores_depend_on_the_distance_only():
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).unbind(0)
    rotary = Rotary(64, 8).double()
    for distance in (0, 1, 7):
        scores = [(rotary(q, t + distance) * rotary(k, t)).sum() for t in (0, 5, 40)]
        torch.testing.assert_close(scores[0], scores[1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(scores[0], scores[2], rtol=1e-5, atol=1e-5)
    far = (rotary(q, 20) * rotary(k, 0)).sum()
    assert not torch.isclose(far, (q * k).sum())


def test_length_is_kept_and_position_zero_is_left_alone():
    x = torch.randn(1, 1, 5, 8)
    turned = Rotary(5, 8)(x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(turned[:, :, 0], x[:, :, 0])


def test_start_moves_the_positions():
    x = torch.randn(1, 1, 5, 8)
    rotary = Rotary(9, 8)
    torch.testing.assert_close(rotary(x, 4), rotate(x, rotary.cos[4:9], rotary.sin[4:9]))


def test_the_frequencies_by_hand():
    angles = rotation_angles(torch.tensor([0, 1, 2]), 4, base=100.0)
    torch.testing.assert_close(angles, torch.tensor([[0.0, 0.0], [1.0, 0.1], [2.0, 0.2]]))


def test_odd_heads_are_explained():
    with pytest.raises(ValueError, match="head_dim=7 is odd"):
        rotation_angles(torch.arange(3), 7)
