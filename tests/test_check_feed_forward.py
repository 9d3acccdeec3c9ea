"""Exercises of chapter 5 against right answers that are not ours: torch's GELU, dropout and Linear,
and the MLPs of Hugging Face; wrong ones get their own numbers told.
"""

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.models.llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from gptedu import check


class Sequential(nn.Sequential):
    """As PyTorch users write it; without biases, which is right too."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        up, down = nn.Linear(d_model, d_ff, bias=False), nn.Linear(d_ff, d_model, bias=False)
        super().__init__(OrderedDict(up=up, bend=nn.ReLU(), down=down))


def llama(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    C, F_ = w_gate.shape
    mlp = LlamaMLP(LlamaConfig(hidden_size=C, intermediate_size=F_, num_attention_heads=1))
    matrices = {
        "gate_proj.weight": w_gate.T,
        "up_proj.weight": w_up.T,
        "down_proj.weight": w_down.T,
    }
    mlp.load_state_dict(matrices)
    return mlp(x)


def torchs_factor(x: Tensor, noise: Tensor, p: float, training: bool) -> Tensor:
    """The factor is read off torch's own dropout."""
    factor = F.dropout(torch.ones(1000), p, training).max()
    return torch.where(noise < p, 0.0, x * factor) if training else x


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        (check.gelu, nn.GELU(approximate="tanh")),
        (check.gelu, ACT2FN["gelu_new"]),
        (check.mlp, Sequential),
        (check.swiglu, llama),
        (check.dropout, torchs_factor),
    ],
)
def test_right_answers_of_others_pass(exercise: check.Exercise, answer: object) -> None:
    verdict = exercise.diagnose(answer)
    assert verdict, verdict.message


def test_wrong_answers_of_others_are_named_with_their_numbers() -> None:
    verdict = check.gelu.diagnose(ACT2FN["gelu"])
    assert verdict.mistake == "the exact form"
    x = torch.linspace(-4, 4, 33)
    gap = (F.gelu(x) - F.gelu(x, approximate="tanh")).abs().max()
    assert f"up to {gap:.4f}" in verdict.message
    assert check.gelu.diagnose(ACT2FN["quick_gelu"]).mistake == "the sigmoid form"
    verdict = check.dropout.diagnose(
        lambda x, noise, p, training: (
            x * (noise > p) * 5 if p < 0.5 and training else torchs_factor(x, noise, p, training)
        )
    )
    assert verdict.mistake == "survivors divided by p"
    assert "by 5.00, that is 1 / p" in verdict.message
    assert "1 / (1 - p) = 1.25" in verdict.message


def test_an_mlp_needs_its_two_layers() -> None:
    class Nameless(nn.Module):
        def __init__(self, d_model: int, d_ff: int) -> None:
            super().__init__()

    with pytest.raises(ValueError, match="up and down; your up is missing"):
        check.mlp.diagnose(Nameless)
    with pytest.raises(ValueError, match="the class itself"):
        check.mlp.diagnose(Sequential(8, 32))


def test_half_the_factor_of_gelu_is_named() -> None:
    density = torch.distributions.Normal(0.0, 1.0).log_prob(torch.tensor(0.0)).exp()
    verdict = check.gelu.diagnose(
        lambda x: x / 2 * (1 + torch.tanh(density * (x + 0.044715 * x.pow(3))))
    )
    assert verdict.mistake == "half the factor"


def test_first_publications_dropout_and_a_share_counted_once_are_named() -> None:
    def classic(x: Tensor, noise: Tensor, p: float, training: bool) -> Tensor:
        return torch.where(noise < p, 0.0, x) if training else x * (1 - p)

    def counted(x: Tensor, noise: Tensor, p: float, training: bool) -> Tensor:
        kept = noise >= p
        return x * kept * kept.numel() / kept.sum() if training else x

    assert check.dropout.diagnose(classic).mistake == "dropout as first published"
    verdict = check.dropout.diagnose(counted)
    assert verdict.mistake == "divided by the share that happened to survive"
