"""Plots are proven by reading the picture back: the pixels and texts that matplotlib drew."""

import io
from collections.abc import Iterator

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

matplotlib.use("agg")
import matplotlib.pyplot as plt

from gptedu import notebook, plots
from gptedu.attention import causal_mask


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    """The book's look, and the world as it was afterwards."""
    with plt.rc_context(), torch.random.fork_rng():
        notebook.setup()
        yield
        plt.close("all")
    np.set_printoptions(precision=8, suppress=False)
    torch.set_printoptions(profile="default")


def png() -> bytes:
    file = io.BytesIO()
    plt.savefig(file, metadata={"Software": None})
    return file.getvalue()


def pixel(ax: Axes, row: float, column: float) -> str:
    """The colour that was drawn at a place of the matrix."""
    ax.figure.canvas.draw()
    x, y = ax.transData.transform((column, row))
    rgba = np.asarray(ax.figure.canvas.buffer_rgba())
    return to_hex(rgba[rgba.shape[0] - 1 - int(y), int(x)] / 255)


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_probabilities_go_from_paper_to_ink() -> None:
    plots.heatmap([[0.0, 1.0], [0.5, 0.25]], values=False)
    ax = plt.gcf().axes[0]
    assert pixel(ax, 0, 0) == "#ffffff"
    assert pixel(ax, 0, 1) == "#0b2c52"
    darkness = [int(pixel(ax, *cell)[1:3], 16) for cell in ((0, 0), (1, 1), (1, 0), (0, 1))]
    assert darkness == sorted(darkness, reverse=True)


def test_signed_numbers_are_white_at_zero_and_symmetric() -> None:
    plots.heatmap([[-3.0, 0.0, 1.5]], kind="signed", values=False)
    ax = plt.gcf().axes[0]
    assert pixel(ax, 0, 0) == "#005a8e"
    assert pixel(ax, 0, 1) == "#ffffff"
    assert ax.images[0].get_clim() == (-3.0, 3.0)


def test_masked_cells_have_no_colour_and_no_number() -> None:
    plots.heatmap(torch.full((4, 4), 0.5), mask=causal_mask(4))
    ax = plt.gcf().axes[0]
    assert np.array_equal(ax.images[0].get_array().mask, ~causal_mask(4).numpy())
    assert texts(ax) == ["0.50"] * 10
    ax.collections[0].set_hatch(None)  # look below the hatching
    assert pixel(ax, 0, 2) == "#ffffff"
    assert pixel(ax, 2.3, 0) != "#ffffff"


def test_masked_cells_are_hatched_in_light_grey() -> None:
    plots.heatmap(torch.ones(2, 2), mask=causal_mask(2), values=False)
    hatching = plt.gcf().axes[0].collections[0]
    assert len(hatching.get_paths()) == 1
    assert hatching.get_hatch() == "////"
    assert to_hex(hatching.get_edgecolor()[0]) == plots.FAINT


def test_minus_infinity_is_masked_and_nan_is_said() -> None:
    plots.heatmap([[0.5, -torch.inf], [torch.nan, 0.5]], kind="signed")
    ax = plt.gcf().axes[0]
    assert texts(ax) == ["0.50", "NaN", "0.50"]
    assert len(ax.collections[0].get_paths()) == 1


def test_a_boolean_matrix_is_drawn_as_a_mask() -> None:
    plots.heatmap(causal_mask(3))
    ax = plt.gcf().axes[0]
    assert len(ax.collections[0].get_paths()) == 3
    assert not ax.texts
    assert not ax.child_axes


def test_the_numbers_drawn_are_the_matrix() -> None:
    matrix = torch.randn(3, 5)
    plots.heatmap(matrix, kind="signed")
    drawn = torch.tensor([float(text) for text in texts(plt.gcf().axes[0])]).view(3, 5)
    torch.testing.assert_close(drawn, matrix, atol=0.00501, rtol=0)


def test_whole_numbers_are_written_whole_and_zero_has_no_sign() -> None:
    plots.heatmap([[2.0, -0.0, -7.0]], kind="signed")
    assert texts(plt.gcf().axes[0]) == ["2", "0", "-7"]
    plots.bars([0.001, -0.001, 0.5], ["a", "b", "c"])
    assert texts(plt.gca()) == ["0.00", "0.00", "0.50"]


def test_numbers_stay_readable_on_any_cell() -> None:
    plots.heatmap([[0.0, 1.0]])
    assert [text.get_color() for text in plt.gcf().axes[0].texts] == [plots.INK, "white"]


def test_numbers_are_left_out_where_there_is_no_room() -> None:
    plots.heatmap(torch.rand(30, 30))
    assert not plt.gcf().axes[0].texts


def test_labels_show_what_cannot_be_seen() -> None:
    plots.heatmap(torch.eye(3), rows=["a", "\n", " "], columns=["a", "\n", " "])
    ax = plt.gcf().axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "↵", "␣"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "↵", "␣"]


def test_query_and_key_have_their_colours() -> None:
    plots.heatmap(torch.eye(2), xlabel="key", ylabel="query position")
    ax = plt.gcf().axes[0]
    assert ax.xaxis.label.get_color() == plots.COLOURS["key"]
    assert ax.yaxis.label.get_color() == plots.COLOURS["query"]


def test_steps_stand_side_by_side_with_their_titles() -> None:
    scores = torch.randn(3, 3)
    hidden = scores.masked_fill(~causal_mask(3), -torch.inf)
    plots.heatmaps(
        [scores, hidden, hidden.softmax(-1)],
        titles=["scores", "masked", "softmax"],
        kinds=["signed", "signed", "probability"],
        masks=[None, None, causal_mask(3)],
    )
    axes = plt.gcf().axes
    assert [ax.get_title("left") for ax in axes] == ["scores", "masked", "softmax", ""]
    assert not axes[3].axison
    assert [len(ax.texts) for ax in axes] == [9, 6, 6, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"matrix": torch.rand(2, 3, 3)}, "pick one head"),
        ({"matrix": torch.eye(2), "kind": "loud"}, "probability, signed"),
        ({"matrix": torch.eye(2), "rows": ["a"]}, "1 labels for 2 rows"),
        ({"matrix": torch.eye(2), "mask": causal_mask(3)}, r"\(3, 3\)"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plots.heatmap(**arguments)


def test_titles_for_each_matrix() -> None:
    with pytest.raises(ValueError, match="1 titles for 2"):
        plots.heatmaps([torch.eye(2)] * 2, titles=["one"])
    with pytest.raises(ValueError, match="2 labels for bars"):
        plots.bars([1.0, 2.0, 3.0], ["a", "b"])


def test_curves_draw_the_points_and_are_named_at_their_ends() -> None:
    plots.curve([1, 2, 3], {"query": [1, 4, 9], "other": [2, 3, 4]}, levels={"floor": 0.5})
    ax = plt.gca()
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[1, 1], [2, 4], [3, 9]])
    assert ax.lines[0].get_color() == plots.COLOURS["query"]
    assert list(ax.lines[2].get_ydata()) == [0.5, 0.5]
    assert texts(ax) == ["floor", "other", "query"]
    assert ax.get_legend() is None


def test_names_of_curves_do_not_overlap() -> None:
    plots.curve([0, 1], {name: [0, 1 + i / 1000] for i, name in enumerate("abcd")})
    ax = plt.gca()
    ax.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


def test_bars_have_the_heights() -> None:
    plots.bars(torch.tensor([0.25, 0.75]), ["a", " "], ylabel="probability")
    ax = plt.gca()
    assert [bar.get_height() for bar in ax.patches] == [0.25, 0.75]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "␣"]


def test_a_figure_is_as_wide_as_the_text_and_its_type_is_large_enough() -> None:
    plots.heatmap(torch.rand(9, 9), xlabel="key", ylabel="query", title="weights")
    fig = plt.gcf()
    fig.canvas.draw()
    assert fig.get_figwidth() * fig.dpi == pytest.approx(672)
    sizes = [t.get_fontsize() for t in fig.findobj(matplotlib.text.Text) if t.get_text()]
    assert min(sizes) * fig.dpi / 72 >= 11


def test_pictures_are_the_same_to_the_byte() -> None:
    pictures = []
    for _ in range(2):
        notebook.setup()
        plots.heatmap(torch.rand(4, 4), mask=causal_mask(4))
        pictures.append(png())
    assert pictures[0] == pictures[1]
    plots.heatmap(torch.rand(4, 4), mask=causal_mask(4))
    assert png() != pictures[0]


def test_setup_is_silent_and_seeds(capfd: pytest.CaptureFixture[str]) -> None:
    draws = []
    for _ in range(2):
        notebook.setup(7)
        draws.append((torch.rand(3).tolist(), np.random.rand(3).tolist()))
    assert draws[0] == draws[1]
    assert capfd.readouterr() == ("", "")


class Screen:
    """Stands in for a notebook: what is shown, and what it is replaced by."""

    def __init__(self) -> None:
        self.shown: list[list[Figure]] = []

    def display(self, figure: Figure, display_id: bool) -> "Screen":
        assert display_id
        self.shown.append([figure])
        return self

    def update(self, figure: Figure) -> None:
        self.shown[-1].append(figure)


def test_a_live_curve_grows_in_one_display(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(plots, "display", screen.display)
    monkeypatch.setattr(plots, "get_ipython", lambda: "a notebook")
    with plots.LiveCurve(every=0, levels={"floor": 1.0}) as live:
        for step in range(3):
            live.add(step, training=3 - step, validation=2.5 if step == 2 else None)
    [states] = screen.shown
    assert len(states) == 4
    training, validation, _ = states[-1].axes[0].lines
    np.testing.assert_array_equal(training.get_xydata(), [[0, 3], [1, 2], [2, 1]])
    np.testing.assert_array_equal(validation.get_xydata(), [[2, 2.5]])
    assert not plt.get_fignums()  # closed, so that the notebook does not show it twice


def test_a_live_curve_waits_between_drawings_but_always_ends_with_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setattr(plots, "display", screen.display)
    monkeypatch.setattr(plots, "get_ipython", lambda: "a notebook")
    with plots.LiveCurve(every=3600) as live:
        for step in range(50):
            live.add(step, loss=1 / (1 + step))
    [states] = screen.shown
    assert len(states) == 2
    assert len(states[-1].axes[0].lines[0].get_xdata()) == 50


def test_a_live_curve_is_quiet_outside_a_notebook(capfd: pytest.CaptureFixture[str]) -> None:
    with plots.LiveCurve(every=0) as live:
        live.add(0, loss=1.0)
    assert capfd.readouterr() == ("", "")
    assert not plt.get_fignums()
