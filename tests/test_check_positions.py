"""The exercises of the embedding's chapter: right answers of another make pass. PyTorch's own
embedding, Hugging Face's rotary positions, complex numbers; and wrong ones hear their own numbers.
"""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as hugging_face

from gptedu import check


def test_right_lookups() -> None:
    assert check.embed.diagnose(lambda ids, table: F.one_hot(ids, len(table)).float() @ table)
    assert check.embed.diagnose(F.embedding)
    assert check.embed.diagnose(lambda ids, table: nn.Embedding.from_pretrained(table)(ids))


def test_right_neighbours_one_pair_at_a_time() -> None:
    def by_pairs(table: Tensor, i: int, k: int) -> list[int]:
        def cosine(j: int) -> float:
            return float(table[i] @ table[j]) / math.dist([0] * 3, table[j].tolist())

        return sorted((j for j in range(len(table)) if j != i), key=cosine, reverse=True)[:k]

    assert check.nearest.diagnose(by_pairs)


def test_right_sinusoids_number_by_number_and_as_complex_numbers() -> None:
    def by_number(T: int, C: int) -> Tensor:
        def number(t: int, c: int) -> float:
            return (math.cos if c % 2 else math.sin)(t / 10000 ** (c // 2 * 2 / C))

        return torch.tensor([[number(t, c) for c in range(C)] for t in range(T)])

    def by_circle(T: int, C: int) -> Tensor:
        hand = torch.exp(1j * torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, C, 2) / C))
        return torch.view_as_real(hand).flip(-1).flatten(1)

    assert check.sinusoids.diagnose(by_number)
    assert check.sinusoids.diagnose(by_circle)


def test_right_rotations() -> None:
    def llama(x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
        config = LlamaConfig(
            head_dim=x.shape[-1], rope_parameters={"rope_type": "default", "rope_theta": base}
        )
        cos, sin = LlamaRotaryEmbedding(config)(x, positions[None])
        return hugging_face(x, x, cos, sin)[0]

    class Circle(nn.Module):
        def forward(self, x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
            half = x.shape[-1] // 2
            rate = base ** (-torch.arange(half) / half)
            pairs = torch.complex(x[..., :half], x[..., half:])
            pairs = pairs * torch.exp(1j * positions[:, None] * rate)
            return torch.cat((pairs.real, pairs.imag), -1)

    assert check.rotate.diagnose(llama)
    assert check.rotate.diagnose(Circle())


def test_the_paper_s_pairs_are_named() -> None:
    def neighbours(x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
        D = x.shape[-1]
        angle = positions[:, None] * base ** (-torch.arange(0, D, 2) / D)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.exp(1j * angle)
        return torch.view_as_real(pairs).flatten(-2)

    found = check.rotate.diagnose(neighbours)
    assert found.mistake == "neighbours paired"
    assert "number 0 belongs to number 4, half of D = 8 away" in found.message


def test_a_vector_that_changed_its_length_is_shown() -> None:
    def in_place(x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
        D, out = x.shape[-1], x.clone()
        angle = positions[:, None] * base ** (-torch.arange(0, D, 2) / D)
        a, b = out[..., : D // 2], out[..., D // 2 :]
        a.copy_(a * angle.cos() - b * angle.sin())
        b.copy_(a * angle.sin() + b * angle.cos())
        return out

    found = check.rotate.diagnose(in_place)
    assert found.mistake == "the second half uses the new first half"
    x, positions = check.rotate.probes()["positions 0 to 4"]
    before, after = x.norm(dim=-1).flatten(), in_place(x, positions).norm(dim=-1).flatten()
    i = (before - after).abs().argmax()
    assert f"from length {before[i]:.2f} to {after[i]:.2f}" in found.message


@pytest.mark.parametrize("seen", ["itself", "ids"])
def test_neighbours_by_hand(seen: str) -> None:
    """The rows that the message names are those of the probe."""
    table, i, _ = check.nearest.probes()["row 4 of twelve"]

    def euclid(table: Tensor, i: int, k: int) -> Tensor:
        away = (table - table[i]).norm(dim=1)
        return away.index_fill(0, torch.tensor(i), torch.inf).argsort()[:k]

    def itself(table: Tensor, i: int, k: int) -> Tensor:
        return (F.normalize(table, dim=1) @ F.normalize(table, dim=1)[i]).argsort(descending=True)[
            :k
        ]

    found = check.nearest.diagnose(itself if seen == "itself" else euclid)
    if seen == "itself":
        assert found.mistake == "itself among its neighbours"
        assert f"Your first neighbour of row {i} is row {i}" in found.message
    else:
        assert found.mistake == "distance in place of the cosine"
        cosines = F.cosine_similarity(table, table[i : i + 1])
        best = cosines.index_fill(0, torch.tensor(i), -2).topk(4).indices
        at = int((euclid(table, i, 4) != best).int().argmax())
        assert f"row {best[at]} has {cosines[best[at]]:.2f}" in found.message


def test_a_base_left_out_is_named() -> None:
    def own_base(x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
        cos, sin = LlamaRotaryEmbedding(LlamaConfig(head_dim=x.shape[-1]))(x, positions[None])
        return hugging_face(x, x, cos, sin)[0]

    found = check.rotate.diagnose(own_base)
    assert found.mistake == "base left out"
    assert "here it says 50" in found.message
