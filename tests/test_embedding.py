"""Embeddings: the lookup is a one-hot product, the sinusoids are the paper's, number by number."""

import math

import torch
from torch.nn import functional as F

from gptedu.embedding import LearnedPositions, SinusoidalPositions, TokenEmbedding, sinusoids


def test_lookup_is_a_one_hot_product():
    embedding = TokenEmbedding(7, 4)
    ids = torch.tensor([[0, 6, 3], [3, 3, 1]])
    torch.testing.assert_close(embedding(ids), F.one_hot(ids, 7).float() @ embedding.weight)


def test_only_the_rows_in_use_get_a_gradient():
    embedding = TokenEmbedding(5, 4)
    embedding(torch.tensor([[1, 1, 3]])).sum().backward()
    assert embedding.weight.grad.sum(-1).tolist() == [0.0, 8.0, 0.0, 4.0, 0.0]


def test_sinusoids_number_by_number():
    table = sinusoids(10, 6)
    for t in range(10):
        for i in range(3):
            angle = t / 10000 ** (2 * i / 6)
            assert math.isclose(table[t, 2 * i], math.sin(angle), abs_tol=1e-5)
            assert math.isclose(table[t, 2 * i + 1], math.cos(angle), abs_tol=1e-5)


def test_sinusoids_of_an_odd_width_end_in_a_sine():
    torch.testing.assert_close(sinusoids(4, 5)[1, 4], torch.tensor(10000 ** (-4 / 5)).sin())


def test_dot_products_of_sinusoids_depend_on_the_distance_only():
    table = sinusoids(30, 16)
    products = table @ table.T
    torch.testing.assert_close(products.diagonal(3), products[0, 3].expand(27))


def test_positions_from_a_start():
    for positions in (LearnedPositions(8, 4), SinusoidalPositions(8, 4)):
        torch.testing.assert_close(positions(3, 5), positions(8)[5:])
