"""The model map: the whole GPT as one picture, in which every box opens.

    x = embedding(ids) + position
    x = x + attention(norm(x)),  x = x + mlp(norm(x))       N times
    logits = head(norm(x))

Chapter 7. The grey road is the residual stream: every part reads from it and adds to it. The counts
of the boxes add up to `count_parameters`; the tests hold them equal. Left out: dropout.
"""

from pathlib import Path
from typing import Any

import traitlets

from gptedu.config import GPTConfig
from gptedu.widgets.parameters import ConfigWidget


def chapter_links(folder: str | Path, prefix: str = "", ending: str = ".html") -> dict[str, str]:
    """Addresses of the chapters whose notebooks lie in `folder`, by concept.

    Args:
        folder: where the notebooks are.
        prefix: the way there from the page that has the widget, such as "../notebooks/".
        ending: ".html" in the book, ".ipynb" in JupyterLab.
    """
    files = sorted(Path(folder).glob("[0-9][0-9]_*.ipynb"))
    return {file.stem[3:]: f"{prefix}{file.stem}{ending}" for file in files}


class ModelMap(ConfigWidget):
    """Open the parts of a GPT: `ModelMap(preset="gpt2", opened="query")`.

    Args:
        links: addresses of chapters by concept, as `chapter_links` makes them; a chapter without
            one stands as plain text.

    Attributes:
        batch_size: B, texts side by side.
        opened: the box that is open; empty when none is.
    """

    _name = "model"
    _height = 1110
    links = traitlets.Dict().tag(sync=True, book=True)
    batch_size = traitlets.Int(4).tag(sync=True, book=True)
    opened = traitlets.Unicode("query").tag(sync=True, book=True)

    def __init__(
        self, config: GPTConfig | None = None, *, preset: str = "small", **traits: Any
    ) -> None:
        super().__init__(config, preset=preset, **traits)
