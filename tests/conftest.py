"""What every test shares: shapes are checked, seeds are set, one thread, no network."""

import random
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxtyping import install_import_hook

# Before anything imports gptedu: from here on, every annotated shape in it is checked when called.
# The configs check themselves, with words for the reader.
PACKAGE = Path(__file__).parents[1] / "gptedu"
CHECKED = [
    f"gptedu.{path.stem}" for path in PACKAGE.iterdir() if path.stem not in ("__init__", "config")
]
install_import_hook(CHECKED, "beartype.beartype")

import numpy  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

from tests import browser  # noqa: E402

torch.set_num_threads(1)  # tiny tensors: a second thread costs more than it brings


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Start each test from the same random state."""
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser, one for a module; skipped, aloud, where there is none."""
    with browser.chromium() as found:
        yield found


@pytest.fixture(scope="session")
def tiny_shakespeare() -> str:
    """The text of Tiny Shakespeare, from disk only; the test is skipped, aloud, without it."""
    from gptedu import corpus

    def no_network(*args: object, **kwargs: object) -> None:
        raise OSError("tests do not download")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(urllib.request, "urlopen", no_network)
        try:
            return corpus.tiny_shakespeare()
        except OSError as error:
            pytest.skip(f"Tiny Shakespeare is not on this machine, set GPTEDU_DATA: {error}")
