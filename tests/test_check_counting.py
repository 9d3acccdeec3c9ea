"""The exercises of chapter 8: right answers that are not ours pass, wrong ones hear their numbers.

Counts are proved by Hugging Face's modules and by our own on torch's meta device, operations by
torch's counter on a model on that device, bytes by a filled cache, widths by the released models.
"""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gptedu import GPT, check
from gptedu.block import Block
from gptedu.cache import KVCache
from gptedu.check.counting import KNOWN, OUTSIDE, _total
from gptedu.config import PRESETS, GPTConfig
from gptedu.parameters import count_parameters


def size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def built(config: GPTConfig) -> GPT:
    with torch.device("meta"):
        return GPT(config)


# right answers that are not ours


def test_counting_the_real_module_passes() -> None:
    def block(config: GPTConfig) -> int:
        with torch.device("meta"):
            return size(Block(config))

    assert check.count_block.diagnose(block)
    assert check.count_model.diagnose(lambda config: size(built(config)))


def test_a_count_written_out_by_hand_passes() -> None:
    def block(c: GPTConfig) -> int:
        C, F, Q, K = c.d_model, c.d_ff, c.n_head * c.head_dim, c.n_kv_head * c.head_dim
        attention = 2 * C * (Q + K) + c.qkv_bias * (Q + 2 * K) + c.bias * C
        up = (2 if c.mlp in ("swiglu", "geglu") else 1) * (C * F + c.bias * F)
        norm = C * (1 + (c.norm == "layernorm" and c.norm_bias))
        return attention + up + F * C + c.bias * C + 2 * norm + 2 * c.head_dim * c.qk_norm

    assert check.count_block.diagnose(block)


def test_probes_hold_the_family_s_oddities() -> None:
    """Without these, a mistake would pass unseen."""
    probes = [config for (config,) in check.count_block.probes().values()]
    assert any(c.head_dim * c.n_head != c.d_model for c in probes)
    assert any(c.qkv_bias != c.bias for c in probes)
    assert any(c.norm_bias != c.bias for c in probes)
    assert any(c.d_ff != 4 * c.d_model for c in probes)
    assert any(c.qk_norm for c in probes)


def test_gemma_7b_is_the_model_of_the_report() -> None:
    """Gemma report, table 2: 7,751,248,896 beside the embedding."""
    config = KNOWN["gemma-7b"]
    embedding = config.vocab_size * config.d_model
    assert count_parameters(config).total - embedding == 7_751_248_896


def test_torch_s_own_flop_counter_passes() -> None:
    def counted(config: GPTConfig, context: int) -> int:
        """On one layer and on two: the difference is a layer, the rest the head."""
        flops = []
        for n_layer in (1, 2):
            words = config.to_dict() | {"n_layer": n_layer, "dropout": 0.0}
            model = built(GPTConfig(**words))
            for block in model.blocks:
                block.attention.kernel = "explicit"
            ids = torch.zeros(1, context, dtype=torch.long, device="meta")
            with FlopCounterMode(display=False) as counter:
                model(ids).sum().backward()
            flops.append(counter.get_total_flops() // context)
        one, two = flops
        return one + (config.n_layer - 1) * (two - one)

    assert check.training_flops.diagnose(counted)


def test_the_bytes_of_a_real_cache_pass() -> None:
    def held(config: GPTConfig, tokens: int, number_bytes: int) -> int:
        """Each layer alone has the same: two layers are filled, and the others counted."""
        dtype = {2: torch.bfloat16, 4: torch.float32}[number_bytes]
        cache = KVCache(config)
        for layer in cache.layers[:2]:
            made = torch.zeros(1, config.n_kv_head, tokens, config.head_dim, dtype=dtype)
            layer.append(made, made)
        one = sum(t[:, :, :tokens].numel() * number_bytes for t in (layer.k, layer.v))
        return one * config.n_layer

    assert check.kv_cache_bytes.diagnose(held)


@pytest.mark.parametrize("name", ["llama-7b", "llama-13b", "llama-33b", "llama-65b"])
def test_the_gated_width_is_that_of_the_released_models(name: str) -> None:
    config = PRESETS[name]
    assert check.swiglu_width.reference(config.d_model, 256) == config.d_ff
    assert check.swiglu_width.diagnose(lambda C, m: math.ceil(8 * C / 3 / m) * m)


def test_a_total_is_a_fingerprint_of_its_shape() -> None:
    shapes = [(L, C) for C in range(64, 4097, 64) for L in range(1, 101)]
    assert len({_total(shape) for shape in shapes}) == len(shapes)
    for shape in shapes[::997]:
        L, C = shape
        config = GPTConfig.preset("gpt2", n_layer=L, d_model=C, n_head=C // 64, head_dim=64)
        words = config.to_dict() | {"d_ff": 4 * C}
        assert count_parameters(GPTConfig(**words)).total == _total(shape)

    def search(total: int) -> tuple[int, int]:
        for C in range(64, 4097, 64):
            rest = total - (50257 + 1024 + 2) * C
            if rest > 0 and rest % (12 * C**2 + 13 * C) == 0:
                return rest // (12 * C**2 + 13 * C), C
        raise AssertionError

    assert check.find_shape.diagnose(search)


# wrong answers, with the reader's own numbers


def test_the_whole_state_dict_counts_a_tied_head_twice() -> None:
    def mine(config: GPTConfig) -> int:
        return sum(tensor.numel() for tensor in built(config).state_dict().values())

    verdict = check.count_model.diagnose(mine)
    assert verdict.mistake == "tied head counted"
    assert "38,597,376" in verdict.message
    assert "163037184" in verdict.message


def test_the_gemma_report_s_width_is_recognised() -> None:
    def mine(config: GPTConfig) -> int:
        gated = config.mlp in ("swiglu", "geglu")
        F = config.d_ff * (2 if gated else 1)
        mlp = count_parameters(config).rows
        rest = sum(
            row.count
            for row in mlp
            if not row.component.startswith(OUTSIDE)
            and row.component not in ("MLP up", "MLP gate", "MLP down")
        )
        return rest + 2 * config.d_model * F + config.bias * (F + config.d_model)

    verdict = check.count_block.diagnose(mine)
    assert verdict.mistake == "gated layer twice as wide"
    assert "14336" in verdict.message


def test_a_cache_for_every_query_head_is_told_its_factor() -> None:
    def mine(config: GPTConfig, tokens: int, number_bytes: int) -> int:
        return 2 * config.n_layer * config.n_head * config.head_dim * tokens * number_bytes

    verdict = check.kv_cache_bytes.diagnose(mine)
    assert verdict.mistake == "query heads counted"
    assert "4 times too large" in verdict.message


def test_kaplan_s_table_is_recognised() -> None:
    def mine(config: GPTConfig, context: int) -> int:
        C, Q, K = config.d_model, config.n_head * config.head_dim, config.n_kv_head
        matrices = 3 if config.mlp in ("swiglu", "geglu") else 2
        block = 2 * C * (Q + K * config.head_dim) + matrices * C * config.d_ff
        N = config.n_layer * block + C * config.vocab_size
        return 3 * (2 * N + 2 * config.n_layer * context * Q)

    verdict = check.training_flops.diagnose(mine)
    assert verdict.mistake == "half of the attention"


def test_an_unknown_miscount_gets_the_two_numbers() -> None:
    verdict = check.count_model.diagnose(lambda config: 124)
    assert verdict.mistake is None
    assert "On gpt2: `parameters` is 124; it should be 124439808." in verdict.message


def test_no_shape_found_is_no_crash() -> None:
    assert check.find_shape.diagnose(lambda total: None).mistake == "nothing fits"
