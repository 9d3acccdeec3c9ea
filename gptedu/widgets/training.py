"""The training player: a recorded run, scrubbed from its first step to its last.

    loss curve (steps on a logarithmic axis), sample, one head's attention on a fixed prompt

Chapter 9. What is shown was written down by `gptedu.recording` while the model trained; nothing is
computed again. The runs that come with the book are files of the page, loaded when a reader chooses
them; a recording of your own travels in the stored output. Left out: weights and gradients.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import traitlets

from gptedu import recording
from gptedu.widgets import host


class TrainingPlayer(host.Widget):
    """One recorded run, or two beside each other at the same step.

    Args:
        runs: what can be chosen: names of runs that come with the book, and folders that
            `python -m gptedu train --record` has written. None: all that come with the book.

    Attributes:
        run: the run that is shown; the first, unless given.
        other: a second one beside it; "" for none.
        step: the moment; what was kept last up to this step. None: the end.
        layer: of the attention, from 1.
        head: of the attention, from 1.
        titles: of the runs that can be chosen, by name.
        recorded: the chosen runs as `recording.condense` makes them.
    """

    _name = "training"
    _height = 930
    runs = traitlets.List(traitlets.Unicode()).tag(sync=True, book=True)
    run = traitlets.Unicode().tag(sync=True, book=True)
    other = traitlets.Unicode().tag(sync=True, book=True)
    step = traitlets.Int(None, allow_none=True, min=0).tag(sync=True, book=True)
    layer = traitlets.Int(1, min=1).tag(sync=True, book=True)
    head = traitlets.Int(1, min=1).tag(sync=True, book=True)
    titles = traitlets.Dict().tag(sync=True, book=True)
    recorded = traitlets.Dict().tag(sync=True)

    def __init__(self, runs: Sequence[str | Path] | None = None, **traits: Any) -> None:
        self._found = {str(name): _find(str(name)) for name in runs or recording.runs()}
        titles = {name: found["title"] for name, found in self._found.items()}
        traits.setdefault("run", next(iter(titles)))
        super().__init__(runs=[*map(str, runs or [])], titles=titles, **traits)
        self._hand_over()

    @traitlets.validate("run", "other")
    def _known(self, proposal: Any) -> str:
        name, empty = proposal.value, proposal.trait.name == "other"
        if name not in self._found and not (empty and name == ""):
            raise ValueError(f"{name!r} is none of the runs here: {', '.join(self._found)}")
        return name

    @traitlets.observe("run", "other")
    def _hand_over(self, change: Any = None) -> None:
        self.recorded = {name: self._found[name] for name in (self.run, self.other) if name}

    def book_state(self) -> dict[str, Any]:
        """As every widget's, and your own recordings; the page has files of the book's."""
        own = {name: run for name, run in self._found.items() if name not in recording.runs()}
        return super().book_state() | {"recorded": own}

    def fallback(self) -> str:
        """The moments of the run: losses, and how its sample begins."""
        run = self._found[self.run]
        rows = []
        for one in run["moments"]:
            losses = ("–" if x is None else f"{x:.2f}" for x in (one["loss"], one["val_loss"]))
            rows.append((one["step"], *losses, one["sample"][:60].replace("\n", "↵")))
        columns = ["step", "loss", "validation loss", "sample"]
        return host.table(f"{run['title']}: what was kept of it", columns, rows)


def _find(name: str) -> dict[str, Any]:
    """A run that comes with the book, or else a folder with a recording."""
    if name in recording.runs():
        return recording.shipped(name)
    try:
        found = recording.read(name)
    except ValueError as error:
        known = f"no run {name!r} comes with the book (there are {', '.join(recording.runs())})"
        raise ValueError(f"{known}; {error}") from None
    return recording.condense(found, name=name, title=Path(name).resolve().name)


def run_script(name: str) -> str:
    """A run that comes with the book as a script that a page may load: `runs/NAME.js`."""
    content = host.to_json(recording.shipped(name))
    return f"GptEdu.runs.set({json.dumps(name)},\n{content});\n"
