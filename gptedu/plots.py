"""The figures of the book, in matplotlib: heat maps, curves with direct labels, bars, a live curve.

Every function draws on the `ax` that it is given, or makes a figure as wide as the text. None
returns anything, so a notebook cell may simply end with one; to go on drawing, make the axes
yourself (`fig, ax = plt.subplots()`) and pass them in.

Colour is meaning: query blue, key orange, value green, the residual stream grey. Probabilities go
from paper to ink; signed numbers from blue through white to orange, white at zero. What is masked
is hatched. A label that begins with one of those words takes its colour. Left out: three
dimensions, animation (see the widgets).
"""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from IPython import get_ipython
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.patches import Rectangle
from torch import Tensor

COLOURS = {"query": "#0072B2", "key": "#D55E00", "value": "#009E73", "residual": "#6f6f6f"}
INK, FAINT = "#222222", "#c4c4c4"
SMALL = 9  # points, 14 px on the page

_RAMP = {
    "probability": ["#ffffff", "#c9dcec", "#7aa6cc", "#2f6ea5", "#0b2c52"],
    "signed": ["#005a8e", "#6fadd3", "#ffffff", "#f0a165", "#b34a00"],
}
# an odd number of steps, so that the one in the middle is exactly white
KINDS = {name: LinearSegmentedColormap.from_list(name, c, N=257) for name, c in _RAMP.items()}


def visible(token: object) -> str:
    """A token as it can be seen in a label: a newline as ↵, a space as ␣, a tab as ⇥."""
    return str(token).replace("\n", "↵").replace(" ", "␣").replace("\t", "⇥")


def _array(x: Any) -> np.ndarray:
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        x = x.float() if x.is_floating_point() else x
    return np.asarray(x)


def _axes(ax: Axes | None, height: float) -> Axes:
    if ax is not None:
        return ax
    width = plt.rcParams["figure.figsize"][0]
    return plt.subplots(figsize=(width, height))[1]


def _colour(label: str, default: str = INK) -> str:
    return COLOURS.get(label.partition(" ")[0], default)


def _name_axes(ax: Axes, title: str, xlabel: str, ylabel: str) -> None:
    ax.set_title(title)
    ax.set_xlabel(xlabel, color=_colour(xlabel))
    ax.set_ylabel(ylabel, color=_colour(ylabel))


def _numbers(values: np.ndarray) -> list[str]:
    """Two decimals for all, or none where all are whole; never a minus before zero."""
    finite = values[np.isfinite(values)]
    decimals = 0 if (finite == finite.round()).all() else 2
    texts = ["NaN" if np.isnan(x) else f"{x:.{decimals}f}" for x in values]
    return [t.lstrip("-") if t.strip("-0.") == "" else t for t in texts]


def _on(colour: Any) -> str:
    """Ink on a light ground, white on a dark one."""
    r, g, b = to_rgb(colour)
    return "white" if 0.299 * r + 0.587 * g + 0.114 * b < 0.55 else INK


def heatmap(
    matrix: Any,
    ax: Axes | None = None,
    *,
    rows: Sequence[Any] | None = None,
    columns: Sequence[Any] | None = None,
    mask: Any = None,
    kind: str = "probability",
    values: bool | None = None,
    limit: int | float | None = None,
    bar: bool = True,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
) -> None:
    """A matrix in colour, first row on top.

    Args:
        matrix: (R, N) numbers. Minus infinity is drawn as masked; a matrix of booleans as a mask.
        rows, columns: a label for each row and column, usually the tokens.
        mask: (R, N) booleans as in `causal_mask`: True is shown, False is hatched.
        kind: "probability" (0 to `limit`, 1 by default) or "signed" (-`limit` to `limit`, the
            largest magnitude by default).
        values: write the numbers into the cells (None: where there is room).
        bar: draw the colour bar.
    Raises:
        ValueError: for an unknown kind, or labels or a mask that do not fit the matrix.
    """
    cells = _array(matrix)
    if cells.ndim != 2:
        raise ValueError(f"a heat map needs a matrix, not shape {cells.shape}; pick one head")
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is not known; choose one of {', '.join(KINDS)}")
    for word, labels, n in (("rows", rows, cells.shape[0]), ("columns", columns, cells.shape[1])):
        if labels is not None and len(labels) != n:
            raise ValueError(f"{len(labels)} labels for {n} {word}")
    if cells.dtype == bool:
        mask, values, bar = cells, False, False
        cells = np.where(cells, 0.35, 0.0)
    shown = np.ones(cells.shape, bool) if mask is None else _array(mask).astype(bool)
    if shown.shape != cells.shape:
        raise ValueError(f"the mask is {shown.shape}, the matrix {cells.shape}")
    shown = shown & ~np.isneginf(cells.astype(float))

    n_rows, n_columns = cells.shape
    size = min(0.46, 4.4 / n_columns)  # of a cell, inches
    ax = _axes(ax, n_rows * size + 1.1)
    if limit is None:
        finite = np.abs(cells[shown & np.isfinite(cells)])
        limit = 1.0 if kind == "probability" else float(finite.max(initial=0.0)) or 1.0
    low = 0.0 if kind == "probability" else -limit
    image = ax.imshow(
        np.ma.masked_where(~(shown & np.isfinite(cells)), cells.astype(float)),
        cmap=KINDS[kind],
        vmin=low,
        vmax=limit,
        aspect="equal",
    )
    hidden = [Rectangle((j - 0.5, i - 0.5), 1, 1) for i, j in np.argwhere(~shown)]
    ax.add_collection(
        PatchCollection(hidden, facecolor="none", edgecolor=FAINT, hatch="////", linewidth=0)
    )
    _frame(ax, n_rows, n_columns, rows, columns)
    _name_axes(ax, title, xlabel, ylabel)
    if bar:
        ax.figure.colorbar(image, cax=ax.inset_axes((1.03, 0, 0.035, 1)))
        ax.child_axes[-1].tick_params(labelsize=SMALL)
        ax.child_axes[-1].spines["outline"].set_visible(False)
    room = int(_inches(ax)[0] / 0.36)  # how many numbers fit side by side
    if values or (values is None and n_columns <= room):
        for (i, j), text in zip(np.argwhere(shown), _numbers(cells[shown]), strict=True):
            ground = "white" if text == "NaN" else image.to_rgba(cells[i, j])[:3]
            ax.text(j, i, text, ha="center", va="center", fontsize=SMALL, color=_on(ground))


def _inches(ax: Axes) -> tuple[float, float]:
    """Width and height of the axes, before the layout makes room for labels."""
    box = ax.get_window_extent()
    return box.width / ax.figure.dpi, box.height / ax.figure.dpi


def _frame(
    ax: Axes, n_rows: int, n_columns: int, rows: Sequence[Any] | None, columns: Sequence[Any] | None
) -> None:
    """Labels above and to the left, as matrices are written; thin lines between few cells."""
    for axis, labels, n in ((ax.xaxis, columns, n_columns), (ax.yaxis, rows, n_rows)):
        if labels is not None:
            axis.set_ticks(range(n), [visible(label) for label in labels])
        elif n <= 12:
            axis.set_ticks(range(n))
        axis.set_tick_params(length=0)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_color(FAINT)
    if max(n_rows, n_columns) <= 16:
        for axis, n in ((ax.xaxis, n_columns), (ax.yaxis, n_rows)):
            axis.set_ticks(np.arange(0.5, n - 1), minor=True)
        ax.grid(which="minor", color="#e8e8e8", linewidth=0.8)
        ax.tick_params(which="minor", length=0)


def heatmaps(
    matrices: Sequence[Any],
    *,
    titles: Sequence[str],
    kinds: Sequence[str] | None = None,
    masks: Sequence[Any] | None = None,
    per_line: int = 2,
    **options: Any,
) -> None:
    """Several matrices of one shape side by side, read like text: the steps of a computation.

    `titles`, `kinds` and `masks` have one entry for each; the other `options` are those of
    `heatmap`. Two to a line leaves numbers readable on a telephone.
    """
    count = len(matrices)
    kinds = kinds or [options.pop("kind", "probability")] * count
    masks = masks or [options.pop("mask", None)] * count
    for word, given in (("titles", titles), ("kinds", kinds), ("masks", masks)):
        if len(given) != count:
            raise ValueError(f"{len(given)} {word} for {count} matrices")
    lines = -(-count // per_line)
    n_rows, n_columns = _array(matrices[0]).shape
    width = plt.rcParams["figure.figsize"][0]
    size = min(0.46, (width / per_line - 1.0) / n_columns)
    height = lines * (n_rows * size + 0.95)
    axes = plt.subplots(lines, per_line, figsize=(width, height), squeeze=False)[1]
    for ax in axes.flat[count:]:
        ax.set_axis_off()
    panels = zip(axes.flat, matrices, titles, kinds, masks, strict=False)
    for ax, matrix, title, kind, mask in panels:
        heatmap(matrix, ax, kind=kind, mask=mask, title=title, **options)


def _spread(heights: np.ndarray, gap: float) -> np.ndarray:
    """Move sorted heights as little as is simple, so that neighbours stand `gap` apart."""
    placed = heights.copy()
    for i in range(1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + gap)
    return placed - (placed - heights).mean()


def curve(
    x: Any,
    lines: Mapping[str, Any],
    ax: Axes | None = None,
    *,
    levels: Mapping[str, int | float] | None = None,
    colours: Mapping[str, str] | None = None,
    points: bool = False,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    xscale: str = "linear",
    yscale: str = "linear",
) -> None:
    """Lines over one `x`, each named at its right end instead of in a legend.

    Args:
        x: (N,) numbers, or a mapping from each line's name to its own.
        lines: name -> (N,) heights.
        levels: name -> height of a dashed line across, such as a floor to compare with.
        colours: name -> colour, where neither the name nor the order should choose.
        points: mark each measured point.
    """
    ax = _axes(ax, 3.4)
    cycle = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    ends: list[tuple[float, float, str, str]] = []
    for i, (name, heights) in enumerate(lines.items()):
        colour = (colours or {}).get(name) or _colour(name, cycle[i % len(cycle)])
        across, up = _array(x[name] if isinstance(x, Mapping) else x), _array(heights)
        ax.plot(across, up, color=colour, marker="o" if points else "")
        ends.append((float(across[-1]), float(up[-1]), name, colour))
    for name, height in (levels or {}).items():
        ax.axhline(height, color=COLOURS["residual"], linewidth=1, linestyle=(0, (4, 3)))
        ends.append((float("inf"), height, name, COLOURS["residual"]))
    ax.set_xscale(xscale)
    ax.set_yscale(yscale)
    _name_axes(ax, title, xlabel, ylabel)
    _label_ends(ax, ends)


def _label_ends(ax: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Write each name beside the right edge, at the height where its line ends."""
    ends = sorted(ends, key=lambda end: end[1])
    ax.autoscale_view()
    place = ax.transData + ax.transAxes.inverted()
    left = ax.get_xlim()[0]
    heights = np.array([place.transform((left, y))[1] for _, y, _, _ in ends])
    gap = 0.2 / _inches(ax)[1]
    for height, (_, _, name, colour) in zip(_spread(heights, gap), ends, strict=True):
        ax.text(1.01, height, name, transform=ax.transAxes, color=colour, va="center", fontsize=10)


def bars(
    heights: Any,
    labels: Sequence[Any],
    ax: Axes | None = None,
    *,
    colour: str = "#2f6ea5",
    values: bool = True,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
) -> None:
    """A distribution: one bar for each label, its number above it."""
    heights = _array(heights)
    if heights.shape != (len(labels),):
        raise ValueError(f"{len(labels)} labels for bars of shape {heights.shape}")
    ax = _axes(ax, 2.6)
    drawn = ax.bar(range(len(labels)), heights, color=colour, width=0.7)
    ax.set_xticks(range(len(labels)), [visible(label) for label in labels])
    ax.tick_params(axis="x", length=0)
    if values:
        ax.bar_label(drawn, _numbers(heights), fontsize=SMALL, padding=2)
    _name_axes(ax, title, xlabel, ylabel)


class LiveCurve:
    """A curve that grows while a loop runs, in one display; what is stored is its last state.

        with LiveCurve(xlabel="step", ylabel="loss", levels={"floor": 0.8}) as live:
            for record in train(model, ids, config):
                live.add(record.step, training=record.loss, validation=record.val_loss)

    A value of None is skipped, so lines may have different points. It redraws at most once in
    `every` seconds, and once more when the block ends. The other words are those of `curve`.
    """

    def __init__(self, *, every: int | float = 2.0, **options: Any) -> None:
        self.every, self.options = every, options
        self.x: dict[str, list[float]] = {}
        self.lines: dict[str, list[float]] = {}
        self._handle: Any = None
        self._drawn = float("-inf")

    def add(self, x: int | float, **heights: int | float | None) -> None:
        """Append a point to each named line, and redraw if it is time."""
        for name, height in heights.items():
            if height is not None:
                self.x.setdefault(name, []).append(float(x))
                self.lines.setdefault(name, []).append(float(height))
        if time.monotonic() - self._drawn >= self.every:
            self.draw()

    def draw(self) -> None:
        """Show the curve as it now is (outside a notebook: nothing happens)."""
        if get_ipython() is None or not self.lines:
            return
        fig, ax = plt.subplots()
        curve(self.x, self.lines, ax, **self.options)
        plt.close(fig)
        if self._handle is None:
            self._handle = display(fig, display_id=True)
        else:
            self._handle.update(fig)
        self._drawn = time.monotonic()

    def __enter__(self) -> "LiveCurve":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.draw()


def tokens(
    lines: Mapping[str, Sequence[str | bytes]], ax: Axes | None = None, *, title: str = ""
) -> None:
    """One text cut into tokens in several ways: a line for each way, a box for each token.

    Letters of all lines stand below each other, so only the cuts differ. A piece that no label can
    show (half a character, a sign that is not Latin) is written as the bytes that it is.

    Args:
        lines: name of the way -> the tokens, text or bytes.
    Raises:
        ValueError: for more than 90 letters, which would be too small to read.
    """
    labels = {name: [_piece(token) for token in found] for name, found in lines.items()}
    width = max(sum(map(len, found)) for found in labels.values())
    if width > 90:
        raise ValueError(f"{width} letters on one line are too small to read: show at most 90")
    ax = _axes(ax, 0.58 * len(labels) + (0.35 if title else 0.1))
    room = 72 * plt.rcParams["figure.figsize"][0] / 0.645  # letters of one point, side by side
    size = min(11.0, room / max(width, 1))
    for row, (name, found) in enumerate(labels.items()):
        at = 0
        for i, label in enumerate(found):
            box = Rectangle((at, row + 0.42), len(label), 0.5, edgecolor="#7d99b0")
            box.set_facecolor(("#ffffff", "#dbe8f2")[i % 2])
            ax.add_patch(box)
            ax.text(
                at + len(label) / 2, row + 0.67, label, fontfamily="DejaVu Sans Mono",
                fontsize=size, ha="center", va="center",
            )  # fmt: skip
            at += len(label)
        ax.text(0, row + 0.3, f"{name}: {len(found)} tokens", fontsize=10, va="center")
    ax.set(xlim=(0, room / size), ylim=(len(labels), 0), title=title)
    ax.set_axis_off()


def _piece(token: str | bytes) -> str:
    """A token as Latin letters, or as its bytes where these are none."""
    raw = token if isinstance(token, bytes) else token.encode("utf-8")
    text = raw.decode("utf-8", errors="replace")
    if all(c in "\n\t" or (c < "\u0250" and c.isprintable()) for c in text):
        return visible(text)
    return "".join(f"\\x{byte:02x}" for byte in raw)
