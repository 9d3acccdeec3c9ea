"""The first cell of every notebook: what it promises is compared with two runs of the same code."""

import random
from collections.abc import Iterator

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from gptedu import notebook


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Leave the plot style and the print options as they were."""
    with plt.rc_context(), np.printoptions():
        yield
    torch.set_printoptions(profile="default")


def test_the_same_seed_gives_the_same_draws() -> None:
    notebook.setup()
    first = draws()
    assert draws() != first
    notebook.setup()
    assert draws() == first
    notebook.setup(seed=1)
    assert draws() != first


def test_it_sets_the_style_and_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    plt.rcdefaults()
    before = dict(plt.rcParams)
    notebook.setup()
    chosen = mpl.rc_params_from_file(notebook.STYLE, use_default_template=False)
    assert chosen
    assert all(plt.rcParams[key] == value for key, value in chosen.items())
    assert dict(plt.rcParams) != before
    assert capsys.readouterr() == ("", "")


def test_numbers_are_printed_short() -> None:
    notebook.setup()
    assert str(torch.tensor([1 / 3, 1e-7])) == "tensor([0.333, 0.000])"
    assert str(np.array([1 / 3, 1e-7])) == "[0.333 0.   ]"
