"""The MLPs against torch's layers, Hugging Face's Llama MLP, and position by position."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from gptedu.config import GPTConfig
from gptedu.mlp import ACTIVATIONS, MLP, GatedMLP

X = torch.linspace(-2, 2, 2 * 5 * 32).reshape(2, 5, 32)


@pytest.mark.parametrize(("name", "layer"), [("relu", nn.ReLU()), ("gelu", nn.GELU("tanh"))])
def test_mlp_equals_torchs_layers(name, layer):
    mlp = MLP(GPTConfig.preset("tiny", mlp=name))
    torch.testing.assert_close(mlp(X), nn.Sequential(mlp.up, layer, mlp.down)(X))


def test_squared_relu_by_hand():
    values = ACTIVATIONS["relu2"](torch.tensor([-2.0, 0.0, 0.5, 3.0]))
    assert values.tolist() == [0.0, 0.0, 0.25, 9.0]


@pytest.mark.parametrize(("name", "hf"), [("swiglu", "silu"), ("geglu", "gelu_pytorch_tanh")])
def test_gated_mlp_equals_llamas(name, hf):
    ours = GatedMLP(GPTConfig.preset("tiny", mlp=name, bias=False))
    theirs = LlamaMLP(LlamaConfig(hidden_size=32, intermediate_size=128, hidden_act=hf))
    for a, b in (
        (ours.gate, theirs.gate_proj),
        (ours.up, theirs.up_proj),
        (ours.down, theirs.down_proj),
    ):
        b.weight = a.weight
    torch.testing.assert_close(ours(X), theirs(X))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_changed_position_changes_itself_only(name):
    config = GPTConfig.preset("tiny", mlp=name)
    mlp = (GatedMLP if name in ("swiglu", "geglu") else MLP)(config)
    other = X.clone()
    other[:, 2] += 1
    moved = (mlp(other) - mlp(X)).abs().amax(dim=(0, 2)) > 0
    assert moved.tolist() == [False, False, True, False, False]
