"""The first cell of every notebook: one look, one seed, the same numbers each time.

    from gptedu import notebook
    notebook.setup()

It prints nothing and changes only what can be seen: the plot style, pictures at twice the
resolution (sharp on any screen, at half the size of a vector drawing), how numbers are printed,
and the seeds. Outside a notebook it does the same, less the pictures.
"""

import random
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython import get_ipython
from matplotlib_inline.config import InlineBackend

STYLE = Path(__file__).parent / "assets" / "gptedu.mplstyle"


def setup(seed: int = 1337) -> None:
    """Make figures, printed numbers and random draws the same on every run."""
    plt.style.use(STYLE)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    np.set_printoptions(precision=3, suppress=True)
    torch.set_printoptions(precision=3, sci_mode=False)
    shell = get_ipython()
    if shell is not None:
        pictures = InlineBackend.instance(parent=shell)
        # the whole canvas, so that all figures have the same width; no version in the file
        whole: dict[str, Any] = {"bbox_inches": None, "metadata": {"Software": None}}
        pictures.print_figure_kwargs = whole
        pictures.figure_formats = {"retina"}
