"""Weights of randomly initialised `transformers` models: the same logits through ours, both ways.

Every tensor of both sides is used exactly once, which a marker in each number proves.
"""

import json
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from gptedu.config import PRESETS, GPTConfig
from gptedu.hub import config_from_hub, config_to_hub, from_hub, load_pretrained, to_hub
from gptedu.model import GPT

LLAMA_LIKE = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2_LIKE = {
    "vocab_size": 61,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 32,
    "bos_token_id": None,
    "eos_token_id": None,
}
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "gpt2": (GPT2LMHeadModel, GPT2Config, GPT2_LIKE),
    "gpt2 narrow": (GPT2LMHeadModel, GPT2Config, GPT2_LIKE | {"n_inner": 50}),
    "llama": (LlamaForCausalLM, LlamaConfig, LLAMA_LIKE),
    "llama tied": (LlamaForCausalLM, LlamaConfig, LLAMA_LIKE | {"tie_word_embeddings": True}),
    "llama slow": (
        LlamaForCausalLM,
        LlamaConfig,
        LLAMA_LIKE
        | {
            "num_key_value_heads": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
        },
    ),
    "mistral": (
        MistralForCausalLM,
        MistralConfig,
        LLAMA_LIKE | {"sliding_window": 5, "head_dim": 8},
    ),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, LLAMA_LIKE),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, LLAMA_LIKE | {"head_dim": 8}),
}


def theirs(name: str) -> nn.Module:
    """A random model of theirs, gains and biases random too, so that none can be missed."""
    build, config, words = CASES[name]
    model = build(config(**words)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.2 + (weight.ndim == 1))
    return model


def config_words(model: nn.Module) -> dict[str, Any]:
    return json.loads(model.config.to_json_string(use_diff=False))


@torch.no_grad()
def assert_same_logits(mine: nn.Module, other: nn.Module) -> None:
    ids = torch.randint(61, (2, 20))
    assert_close(mine(ids), other(ids).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_their_weights_give_their_logits(name):
    other = theirs(name)
    mine = from_hub(other.state_dict(), config_from_hub(config_words(other)))
    assert not mine.training
    assert_same_logits(mine, other)


@pytest.mark.parametrize("name", CASES)
def test_our_weights_give_our_logits_there(name):
    build, config, words = CASES[name]
    ours = config_from_hub(config_words(build(config(**words))))
    mine = GPT(ours).eval()
    with torch.no_grad():
        for weight in mine.parameters():
            weight.copy_(torch.randn_like(weight) * 0.2 + (weight.ndim == 1))
    other = build(config(**{**config_to_hub(ours), "bos_token_id": None, "eos_token_id": None}))
    missing, unexpected = other.load_state_dict(to_hub(mine), strict=False)
    assert missing == (["lm_head.weight"] if ours.tie_embeddings else [])
    assert unexpected == []
    assert_same_logits(mine, other.eval())


@pytest.mark.parametrize("name", CASES)
def test_every_number_is_used_exactly_once(name):
    """Number all of their weights 0, 1, 2 ...: ours must hold the same numbers, each once."""
    other = theirs(name)
    with torch.no_grad():
        next_number = 0
        for weight in other.parameters():
            weight.copy_(torch.arange(next_number, next_number + weight.numel()).view_as(weight))
            next_number += weight.numel()
    mine = from_hub(other.state_dict(), config_from_hub(config_words(other)))
    numbers = torch.cat([weight.flatten() for weight in mine.parameters()])
    assert torch.equal(numbers.sort().values, torch.arange(next_number).float())
    back = to_hub(mine)
    files = {k: v for k, v in other.state_dict().items() if k in back}
    assert_close(back, files, atol=0, rtol=0)


@pytest.mark.parametrize("name", ["gpt2", "llama tied"])
@pytest.mark.parametrize("shards", ["one file", "several"])
def test_a_folder_that_transformers_saved(tmp_path, name, shards):
    other = theirs(name)
    other.save_pretrained(tmp_path, max_shard_size="5GB" if shards == "one file" else "8KB")
    assert (tmp_path / "model.safetensors.index.json").exists() == (shards == "several")
    assert_same_logits(load_pretrained(tmp_path), other)


def test_files_as_openai_released_them(tmp_path):
    """GPT-2's first files have no prefix, hold the causal masks as buffers, and leave words out."""
    other = theirs("gpt2")
    other.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    old |= {f"h.{i}.attn.bias": torch.ones(1, 1, 32, 32).tril() for i in range(3)}
    save_file(old, tmp_path / "model.safetensors")
    words = {"model_type": "gpt2", "activation_function": "gelu_new"} | {
        word: value for word, value in GPT2_LIKE.items() if value is not None
    }
    (tmp_path / "config.json").write_text(json.dumps(words))
    assert_same_logits(load_pretrained(tmp_path), other)


def test_the_norms_take_the_checkpoints_epsilon(tmp_path):
    """Small activations, as in Qwen2.5's embedding: an epsilon of 1e-5 would shift the logits."""
    words = LLAMA_LIKE | {"rms_norm_eps": 1e-6}
    other = LlamaForCausalLM(LlamaConfig(**words)).eval()
    with torch.no_grad():
        other.model.embed_tokens.weight.mul_(0.1)
        other.lm_head.weight.mul_(20)
    other.save_pretrained(tmp_path)
    assert_same_logits(load_pretrained(tmp_path), other)
    usual = replace(config_from_hub(config_words(other)), norm_eps=1e-5)
    with pytest.raises(AssertionError):
        assert_same_logits(from_hub(other.state_dict(), usual), other)


HUB_PRESETS = [
    *(name for name in PRESETS if name.startswith(("gpt2", "gpt3", "llama", "mistral"))),
    "qwen2.5-0.5b",
    "smollm2-135m",
]


@pytest.mark.parametrize("name", HUB_PRESETS)
def test_public_presets_survive_the_way_there_and_back(name):
    config = PRESETS[name]
    there = json.loads(json.dumps(config_to_hub(config)))
    assert config_from_hub(there) == GPTConfig(**config.to_dict() | {"init": "gpt2"})


def test_published_config_files():
    """The words of config.json as Mistral and Qwen released them, the older spelling."""
    mistral = {
        "model_type": "mistral",
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    }
    assert config_from_hub(mistral) == GPTConfig.preset("mistral-7b", context_length=32768)
    qwen = {
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    }
    assert config_from_hub(qwen) == PRESETS["qwen2.5-0.5b"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"model_type": "bert"}, "model_type='bert'.*gpt2, llama"),
        ({"model_type": "gpt2", "activation_function": "relu"}, "activation_function='relu'"),
        ({"model_type": "gpt2", "tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ({"model_type": "llama", "attention_bias": True}, "attention_bias=True"),
        ({"model_type": "llama", "rope_scaling": {"factor": 8}}, "rope_scaling"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "llama3"}}, "rope_type='llama3'"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window=True"),
    ],
    ids=str,
)
def test_designs_that_we_do_not_build_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        config_from_hub(words)


@pytest.mark.parametrize("name", ["vanilla", "tutorial", "gpt1", "decoder", "shakespeare-mini"])
def test_configs_that_no_family_can_say_are_refused(name):
    with pytest.raises(ValueError, match="none of gpt2, llama"):
        config_to_hub(PRESETS[name])


def test_bad_tensors_are_named():
    other = theirs("llama")
    config = config_from_hub(config_words(other))
    good = other.state_dict()
    with pytest.raises(ValueError, match=r"'model\.layers\.0\.extra\.weight'"):
        from_hub(good | {"model.layers.0.extra.weight": torch.ones(1)}, config)
    with pytest.raises(ValueError, match=r"blocks\.0\.attention\.query\.bias"):
        from_hub(good | {"model.layers.0.self_attn.q_proj.bias": torch.ones(24)}, config)
    with pytest.raises(ValueError, match=r"size mismatch for final_norm\.weight"):
        from_hub(good | {"model.norm.weight": torch.ones(3)}, config)
    with pytest.raises(ValueError, match=r"Missing key.*final_norm\.weight"):
        from_hub({k: v for k, v in good.items() if k != "model.norm.weight"}, config)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        load_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config_to_hub(PRESETS["gpt2"])))
    with pytest.raises(ValueError, match=r"model\.safetensors is missing"):
        load_pretrained(tmp_path)


def test_a_name_is_downloaded(tmp_path, monkeypatch):
    """The hub's own client is asked for the two kinds of file that we read, and no more."""
    import huggingface_hub

    other = theirs("llama")
    other.save_pretrained(tmp_path)
    asked = []

    def snapshot_download(repo: str, **words: Any) -> str:
        asked.append((repo, words))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert_same_logits(load_pretrained("someone/tiny-llama"), other)
    patterns = ["config.json", "*.safetensors*"]
    assert asked == [("someone/tiny-llama", {"allow_patterns": patterns})]


def test_without_the_hubs_client_or_without_a_connection(monkeypatch):
    import huggingface_hub

    def offline(repo: str, **words: Any) -> str:
        raise OSError("no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ValueError, match=r"'someone/model' is no folder here.*no connection"):
        load_pretrained("someone/model")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="install the package huggingface_hub"):
        load_pretrained("someone/model")
