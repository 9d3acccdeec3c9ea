"""The head-split explorer: which number of a row ends in which head, cut rightly and wrongly.

    right   view(B, T, H, D).transpose(1, 2)       a head has D columns in a row
    wrong   view(B, H, T, D)                       the same shape, but head 1 has the text's start
    dealt   view(B, T, D, H).permute(0, 3, 1, 2)   a head has every H-th column

Chapter 4. The numbers count along memory, which `view` never changes. Left out: the projection that
comes before the cut, so that every head has read the whole input.
"""

import torch
import traitlets
from torch import Tensor

from gptedu.multihead import split_heads
from gptedu.widgets import host

WAYS = ("right", "wrong", "dealt")


class HeadSplit(host.Widget):
    """A matrix of T rows, and the heads that it is cut into.

    Attributes:
        way: "right", "wrong" (view alone) or "dealt" (every H-th number).
        positions: T, rows of the matrix.
        heads: H.
        size: D, numbers of a head; a row has H D.
        number: the one that is followed, counted along the rows from 0.
    """

    _name = "heads"
    _height = 640
    way = traitlets.Enum(WAYS, WAYS[0]).tag(sync=True, book=True)
    positions = traitlets.Int(4, min=1, max=6).tag(sync=True, book=True)
    heads = traitlets.Int(2, min=1, max=4).tag(sync=True, book=True)
    size = traitlets.Int(3, min=1, max=4).tag(sync=True, book=True)
    number = traitlets.Int(9, min=0).tag(sync=True, book=True)

    def split(self) -> Tensor:
        """What ends where: (H, T, D) numbers of the matrix."""
        T, H, D = self.positions, self.heads, self.size
        x = torch.arange(float(T * H * D)).view(1, T, H * D)
        wrong, dealt = x.view(1, H, T, D), x.view(1, T, D, H).permute(0, 3, 1, 2)
        return {"right": split_heads(x, H), "wrong": wrong, "dealt": dealt}[self.way][0].int()

    def fallback(self) -> str:
        """The rows of each head."""
        heads = enumerate(self.split().tolist(), start=1)
        rows = [(f"head {h}", *(" ".join(map(str, row)) for row in head)) for h, head in heads]
        places = [f"position {t}" for t in range(self.positions)]
        return host.table(f"Numbers of each head, way: {self.way}", ["", *places], rows)
