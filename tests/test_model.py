"""The whole model: causality, permutation, cache, batches, its loss at the start, its errors.

Equality with Hugging Face's GPT-2 and Llama stands in test_hub.
"""

import math

import pytest
import torch
from torch.nn import functional as F

from gptedu.cache import KVCache
from gptedu.config import GPTConfig
from gptedu.model import GPT

WORDS = {
    "plain": {},
    "tied": {"tie_embeddings": True, "bias": False},
    "sinusoidal": {"position": "sinusoidal", "mlp": "relu"},
    "rope": {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "bias": False},
    "no positions": {"position": "none"},
    "post-norm": {"norm_position": "post"},
    "grouped": {"n_head": 4, "n_kv_head": 2, "qk_norm": True, "position": "rope"},
    "multi-query": {"n_head": 4, "n_kv_head": 1, "head_dim": 16, "mlp": "geglu"},
    "window": {"window": 4, "position": "rope", "mlp": "relu2"},
    "zero": {"init": "zero", "position": "rope"},
    "torch": {"init": "torch"},
}


@pytest.fixture(params=WORDS)
def model(request):
    return GPT(GPTConfig.preset("tiny", **WORDS[request.param])).eval()


def some_ids(batch=2, T=16):
    return torch.randint(65, (batch, T))


@torch.no_grad()
def test_logits_have_their_shape(model):
    assert model(some_ids(3, 7)).shape == (3, 7, 65)
    assert model.hidden(some_ids(3, 7)).shape == (3, 7, 32)


@torch.no_grad()
def test_later_tokens_change_nothing_before_them(model):
    ids = some_ids()
    other = ids.clone()
    other[:, 9:] = (ids[:, 9:] + 1) % 65
    a, b = model(ids), model(other)
    torch.testing.assert_close(a[:, :9], b[:, :9])
    if model.config.init != "zero":
        assert (a[:, 9:] - b[:, 9:]).abs().max() > 1e-4


@torch.no_grad()
def test_cached_equals_uncached(model):
    ids = some_ids()
    cache = KVCache(model.config)
    pieces = ids.split([5, 1, 1, 6, 3], dim=1)
    cached = torch.cat([model(piece, cache) for piece in pieces], dim=1)
    torch.testing.assert_close(cached, model(ids), rtol=1e-5, atol=1e-5)
    assert cache.length == 16


@torch.no_grad()
def test_a_batch_equals_its_rows_alone(model):
    ids = some_ids(4)
    torch.testing.assert_close(model(ids), torch.cat([model(row[None]) for row in ids]))


@torch.no_grad()
def test_kernels_agree_for_the_whole_model(model):
    ids, results = some_ids(), []
    for kernel in ("explicit", "fused"):
        for block in model.blocks:
            block.attention.kernel = kernel
        results.append(model(ids))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def last_logits_of(config, ids):
    torch.manual_seed(0)
    model = GPT(config).eval()
    with torch.no_grad():
        return model(ids)[:, -1]


def test_without_positions_one_layer_cannot_tell_the_order():
    ids = some_ids(1, 10)
    shuffled = torch.cat((ids[:, torch.randperm(9)], ids[:, 9:]), dim=1)
    for position in ("none", "learned", "sinusoidal", "rope"):
        config = GPTConfig.preset("tiny", n_layer=1, position=position, init="torch")
        gap = (last_logits_of(config, ids) - last_logits_of(config, shuffled)).abs().max()
        assert (gap < 1e-5) == (position == "none")


@pytest.mark.parametrize(
    ("init", "low", "high"), [("gpt2", 0.0, 0.05), ("zero", -1e-5, 1e-5), ("torch", 0.05, 0.4)]
)
def test_loss_at_the_start(init, low, high):
    torch.manual_seed(1337)
    model = GPT(GPTConfig.preset("small", init=init)).eval()
    ids = some_ids(32, 64)
    with torch.no_grad():
        loss = F.cross_entropy(model(ids).flatten(0, 1), torch.randint(65, (32 * 64,)))
    assert low <= loss.item() - math.log(65) <= high


def test_gpt2s_initialisation():
    torch.manual_seed(0)
    model = GPT(GPTConfig.preset("small"))
    block = model.blocks[0]
    assert block.attention.query.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.mlp.down.weight.std().item() == pytest.approx(0.02 / math.sqrt(8), rel=0.05)
    assert model.token_embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.mlp.up.bias.abs().max() == 0


def test_zero_init_makes_every_block_the_identity():
    model = GPT(GPTConfig.preset("tiny", init="zero", position="rope"))
    x = torch.randn(1, 5, 32)
    assert model.blocks[0](x).equal(x)


def test_tied_weights_are_one_tensor():
    model = GPT(GPTConfig.preset("tiny", tie_embeddings=True))
    assert model.head.weight is model.token_embedding.weight
    assert model.head.bias is None


def test_same_seed_same_weights():
    models = []
    for _ in range(2):
        torch.manual_seed(5)
        models.append(GPT(GPTConfig.preset("tiny")))
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert a.equal(b)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.zeros(1, 17, dtype=torch.int64), "17 new tokens after 0 do not fit"),
        (torch.zeros(1, 0, dtype=torch.int64), "0 new tokens"),
        (torch.tensor([[0, 65]]), "ids run from 0 to 65, but the vocabulary has vocab_size=65"),
        (torch.tensor([[-1, 3]]), "ids run from -1 to 3"),
    ],
)
def test_bad_ids_are_explained(ids, message):
    with pytest.raises(ValueError, match=message):
        GPT(GPTConfig.preset("tiny"))(ids)


def test_a_full_cache_is_explained():
    model, ids = GPT(GPTConfig.preset("tiny")), some_ids(1)
    cache = KVCache(model.config)
    with torch.no_grad():
        model(ids, cache)
        with pytest.raises(ValueError, match="1 new tokens after 16 do not fit"):
            model(ids[:, :1], cache)
