"""Configs: presets are complete, derived words follow, bad words are explained."""

import dataclasses
import json

import pytest

from gptedu.config import PRESETS, TRAIN_PRESETS, GPTConfig, TrainConfig


def test_words_left_open_follow_the_others():
    config = GPTConfig(n_head=8, d_model=256, bias=False)
    assert (config.n_kv_head, config.head_dim, config.d_ff) == (8, 32, 1024)
    assert config.qkv_bias is False
    assert config.norm_bias is False


def test_preset_changes_are_followed_too():
    config = GPTConfig.preset("tutorial", n_layer=4, d_model=192)
    assert (config.n_layer, config.d_ff, config.head_dim) == (4, 768, 32)
    assert GPTConfig.preset("tutorial").n_layer == 6


def test_the_tutorials_recipe():
    recipe = TrainConfig.preset("tutorial")
    assert (recipe.lr, recipe.schedule, recipe.batch_size) == (3e-4, "constant", 32)
    assert (recipe.steps, recipe.eval_every, recipe.eval_batches, recipe.seed) == (
        5000,
        500,
        200,
        1337,
    )
    assert GPTConfig.preset("tutorial").init == "torch"


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json(name):
    config = PRESETS[name]
    assert GPTConfig(**json.loads(json.dumps(config.to_dict()))) == config == GPTConfig.preset(name)


@pytest.mark.parametrize("name", TRAIN_PRESETS)
def test_recipes_survive_json(name):
    config = TRAIN_PRESETS[name]
    assert TrainConfig(**json.loads(json.dumps(config.to_dict()))) == config


def test_configs_are_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GPTConfig().n_layer = 3
    with pytest.raises(TypeError):
        GPTConfig(65)


def test_an_unknown_preset_lists_the_known():
    with pytest.raises(ValueError, match=r"'gpt5'.*gpt2-xl"):
        GPTConfig.preset("gpt5")
    with pytest.raises(ValueError, match=r"'fast'.*tutorial"):
        TrainConfig.preset("fast")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"n_layer": 0}, "n_layer=0"),
        ({"n_layer": True}, "n_layer=True"),
        ({"vocab_size": 65.0}, "vocab_size=65.0"),
        ({"d_model": 130}, "d_model=130 cannot be cut into n_head=4"),
        ({"n_kv_head": 3}, "n_kv_head=3 does not divide n_head=4"),
        ({"position": "rope", "head_dim": 3}, "head_dim=3 is odd"),
        ({"position": "rotary"}, "position='rotary' is not known; choose one of learned"),
        ({"mlp": "silu"}, "mlp='silu'"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"dropout": float("nan")}, "dropout=nan"),
        ({"window": 0}, "window=0"),
        ({"rope_base": 0}, "rope_base=0"),
    ],
)
def test_bad_model_words_are_explained(words, message):
    with pytest.raises(ValueError, match=message):
        GPTConfig(**words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"steps": 0}, "steps=0"),
        ({"lr": -1.0}, "lr=-1.0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"optimizer": "sgd"}, "optimizer='sgd'"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"min_lr": 1.0}, "min_lr=1.0 is above lr"),
        ({"eval_batches": 0}, "eval_batches=0"),
        ({"warmup": -1}, "warmup=-1"),
    ],
)
def test_bad_training_words_are_explained(words, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**words)
