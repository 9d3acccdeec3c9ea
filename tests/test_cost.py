"""FLOPs against torch's own counter on the real model; bytes against real tensors and the papers.

Activations are compared with equation 1 of Korthikanti et al. 2022, and with what autograd really
keeps in a 16-bit model with LayerNorm (torch's RMSNorm on the CPU keeps more, in fp32).
"""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from gptedu.cache import KVCache
from gptedu.config import PRESETS, GPTConfig, TrainConfig
from gptedu.cost import (
    block_matrices,
    flops_per_token,
    kaplan_flops,
    kv_cache_bytes,
    memory,
    palm_flops,
    rule_of_six,
)
from gptedu.model import GPT
from gptedu.optim import make_optimizers
from gptedu.parameters import count_parameters

CONFIGS = {
    "gpt": GPTConfig.preset("tiny"),
    "tied": GPTConfig.preset("tiny", tie_embeddings=True, bias=False),
    "grouped": GPTConfig.preset("tiny", n_head=4, n_kv_head=2, mlp="swiglu", norm="rmsnorm"),
    "wide heads": GPTConfig.preset("tiny", head_dim=24, n_kv_head=1, d_ff=50, position="rope"),
    "recipe": GPTConfig.preset("shakespeare-mini", n_layer=2, context_length=32),
    "window": GPTConfig.preset("tiny", window=4, norm_position="post"),
}


def explicit_model(config: GPTConfig) -> GPT:
    model = GPT(config)
    for block in model.blocks:
        block.attention.kernel = "explicit"
    return model


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("context", [1, 7, 16])
def test_flops_are_those_that_torch_counts(name, context):
    config, batch = CONFIGS[name], 3
    model, cost = explicit_model(config), flops_per_token(config, context)
    ids = torch.randint(config.vocab_size, (batch, context))
    with FlopCounterMode(display=False) as counted_forward:
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    with FlopCounterMode(display=False) as counted_backward:
        loss.backward()
    assert counted_forward.get_total_flops() == batch * context * cost.forward
    assert counted_backward.get_total_flops() == batch * context * cost.backward
    assert cost.training == 3 * cost.forward


def test_tutorial_flops_by_hand():
    """72 L C^2 + 12 L T C a token in training, and the head's 6 C V."""
    cost = flops_per_token(PRESETS["tutorial"])
    L, C, T, V = 6, 384, 256, 65
    assert cost.training == 72 * L * C**2 + 12 * L * T * C + 6 * C * V
    assert cost.scores == cost.mixing == 2 * L * T * C


def test_kaplan_counts_what_its_table_lists():
    config = PRESETS["gpt3-175b"]
    N, d_attn = 12 * 96 * 12288**2, 12288
    assert kaplan_flops(config) == 3 * (2 * N + 2 * 96 * 2048 * d_attn)
    assert block_matrices(config) == N


def test_palm_formula_is_exact_for_a_model_of_matrices_only():
    """Tied, no biases, no positions: every weight but the gains is one factor of a product."""
    config = GPTConfig.preset("decoder")
    gains = (2 * config.n_layer + 1) * 2 * config.d_model
    assert palm_flops(config) - 6 * gains == flops_per_token(config).training
    assert rule_of_six(config) == 6 * count_parameters(config).total


def test_six_n_is_good_for_large_models_and_bad_for_long_contexts():
    config = PRESETS["gpt3-175b"]
    assert rule_of_six(config) / flops_per_token(config).training == pytest.approx(1, abs=0.03)
    assert rule_of_six(config) / flops_per_token(config, 100_000).training < 0.5


@pytest.mark.parametrize("preset", ["gpt2", "gpt2-xl", "tutorial"])
@pytest.mark.parametrize("batch", [1, 8])
def test_activations_are_equation_1_of_the_paper(preset, batch):
    config = GPTConfig.preset(preset, dropout=0.1, mlp="gelu")
    s, b, h, a = config.context_length, batch, config.d_model, config.n_head
    kept = memory(config, batch).activations
    ends = kept.pop("embedding, final norm, head")
    assert sum(kept.values()) == config.n_layer * (34 * s * b * h + 5 * a * s * s * b)
    assert ends == s * b * h + 4 * s * b * h + 4 * s * b * config.vocab_size  # section 4.3
    fused = memory(config, batch, kernel="fused").activations
    fused.pop("embedding, final norm, head")
    assert sum(fused.values()) == config.n_layer * 34 * s * b * h


def kept_bytes(config: GPTConfig, batch: int, kernel: str) -> int:
    """Bytes of all tensors that autograd keeps, weights apart, each storage once."""
    model = GPT(config).bfloat16()
    for block in model.blocks:
        block.attention.kernel = kernel
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # held, so that no address is used twice
        return tensor

    ids = torch.randint(config.vocab_size, (batch, config.context_length))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        F.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten())
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("kernel", ["explicit", "fused"])
@pytest.mark.parametrize(
    "words",
    [
        {"mlp": "gelu"},
        {"mlp": "relu"},
        {"mlp": "relu2", "bias": False},
        {"mlp": "swiglu", "position": "rope", "n_kv_head": 2},
        {"mlp": "geglu", "head_dim": 48, "d_ff": 200},
        {"norm_position": "post", "n_head": 8},
    ],
    ids=str,
)
def test_activations_are_what_autograd_keeps(words, kernel):
    """Within 5 %: left out are the norms' statistics, the masks, a copy after the fused kernel."""
    config = GPTConfig.preset("small", n_layer=2, norm="layernorm", **words)
    predicted = sum(memory(config, 3, kernel=kernel).activations.values())
    assert kept_bytes(config, 3, kernel) == pytest.approx(predicted, rel=0.05)


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    states = [t for state in optimizer.state.values() for t in state.values()]
    return sum(t.nbytes for t in states if torch.is_tensor(t) and t.ndim)  # steps are counters


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_weights_gradients_and_optimizer_are_real_tensors(name, optimizer):
    config = CONFIGS[name]
    model = GPT(config)
    optimizers = make_optimizers(model, TrainConfig(optimizer=optimizer))
    ids = torch.randint(config.vocab_size, (2, 8))
    F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    for each in optimizers:
        each.step()
    cost = memory(config, 2, 8, optimizer=optimizer)
    assert cost.weights == sum(p.nbytes for p in model.parameters())
    assert cost.gradients == sum(p.grad.nbytes for p in model.parameters())
    assert cost.optimizer == sum(map(optimizer_bytes, optimizers))
    parts = cost.weights + cost.gradients + cost.optimizer + sum(cost.activations.values())
    assert cost.total == parts


@pytest.mark.parametrize("name", CONFIGS)
def test_kv_cache_is_what_the_cache_holds(name):
    config = CONFIGS[name]
    cache = KVCache(config)
    with torch.no_grad():
        GPT(config)(torch.randint(config.vocab_size, (2, 9)), cache)
    assert cache.nbytes == kv_cache_bytes(config, 9, batch_size=2)
    assert kv_cache_bytes(config) == kv_cache_bytes(config, config.context_length, 1, 4)


def test_kv_cache_of_llama2_70b():
    """80 layers, 8 key heads of 128, 4,096 tokens, 16 bits: 1.25 GiB, an eighth of 64 heads'."""
    config = PRESETS["llama2-70b"]
    assert kv_cache_bytes(config, number_bytes=2) == 1.25 * 2**30
    every_head = GPTConfig.preset("llama2-70b", n_kv_head=64)
    assert kv_cache_bytes(every_head, number_bytes=2) == 10 * 2**30


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: flops_per_token(c, 0), "context=0"),
        (lambda c: memory(c, 0), "batch_size=0"),
        (lambda c: memory(c, 1, optimizer="sgd"), "optimizer='sgd'.*adamw, muon"),
        (lambda c: memory(c, 1, kernel="flash"), "kernel='flash'.*explicit, fused"),
        (lambda c: kv_cache_bytes(c, -1), "context=-1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(PRESETS["tiny"])
