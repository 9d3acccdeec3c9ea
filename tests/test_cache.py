"""The cache hands back what was put in, and says when it is full."""

import pytest
import torch

from gptedu.cache import KVCache
from gptedu.config import GPTConfig

CONFIG = GPTConfig.preset("tiny", n_head=4, n_kv_head=2)


def some(T, batch=1):
    return torch.randn(batch, 2, T, 8)


def test_pieces_come_back_in_order():
    layer = KVCache(CONFIG).layers[0]
    pieces = [(some(3), some(3)), (some(1), some(1)), (some(5), some(5))]
    for k, v in pieces:
        keys, values = layer.append(k, v)
    assert keys.equal(torch.cat([k for k, _ in pieces], 2))
    assert values.equal(torch.cat([v for _, v in pieces], 2))
    assert layer.length == 9


def test_reset_forgets():
    cache = KVCache(CONFIG)
    for layer in cache.layers:
        layer.append(some(3), some(3))
    assert cache.length == 3
    cache.reset()
    k, v = some(2), some(2)
    assert cache.length == 0
    assert cache.layers[0].append(k, v)[0].equal(k)


def test_a_full_cache_is_explained():
    layer = KVCache(CONFIG).layers[0]
    layer.append(some(15), some(15))
    with pytest.raises(ValueError, match="15 of 16 positions, and 2 more do not fit"):
        layer.append(some(2), some(2))


def test_another_batch_size_is_explained():
    layer = KVCache(CONFIG).layers[0]
    layer.append(some(1), some(1))
    with pytest.raises(ValueError, match="holds 1 texts, but 3 came in"):
        layer.append(some(1, batch=3), some(1, batch=3))


def test_bytes_grow_with_the_positions():
    cache = KVCache(CONFIG)
    assert cache.nbytes == 0
    for layer in cache.layers:
        layer.append(some(3), some(3))
    assert cache.nbytes == 2 * 2 * 2 * 8 * 3 * 4  # k and v, layers, K, D, T, bytes
