"""What a check answers: a verdict in plain words, shown as a small card in a notebook.

The card takes its text colour from the page around it, so it reads in light and in dark mode, and
it says the verdict in words, not in colour alone.
"""

import html
import re
import textwrap
from dataclasses import dataclass, field, replace
from typing import Any

from IPython import get_ipython
from IPython.display import display

_CARD = """\
<div style="border: 1px solid rgba(128, 128, 128, 0.5); border-left: 4px solid {colour};
 border-radius: 4px; padding: 0.6em 1em; margin: 0.5em 0; max-width: 44em; color: inherit;
 background: transparent; line-height: 1.5">
<strong>{title}</strong>
{paragraphs}
</div>"""
_PASSED, _WRONG = "var(--gptedu-right, #009E73)", "var(--gptedu-wrong, #D55E00)"


@dataclass(frozen=True, repr=False)
class Report:
    """The verdict of one check. It is true (as a bool) when the check passed.

    Attributes:
        topic: what was checked, as in `check.topic(...)`.
        passed: whether all is right.
        mistake: the name of the known mistake that it is, else None.
        message: the explanation, paragraphs apart by an empty line, code between backticks.
        source: address of a public thread in which the mistake was met, or "".
    """

    topic: str
    passed: bool
    mistake: str | None
    message: str
    source: str = ""
    _cell: int | None = field(default=None, compare=False)

    def __bool__(self) -> bool:
        return self.passed

    @property
    def title(self) -> str:
        """The verdict in one line."""
        if self.passed:
            return f"✓ {self.topic}: right"
        return f"✗ {self.topic}: not yet" + (f" – {self.mistake}" if self.mistake else "")

    @property
    def paragraphs(self) -> list[str]:
        """The explanation, and where the mistake was met."""
        seen = [f"Met in real code: {self.source}"] if self.source else []
        return [*self.message.split("\n\n"), *seen]

    def __str__(self) -> str:
        body = [textwrap.fill(p, 88, break_long_words=False) for p in self.paragraphs]
        return "\n".join([self.title, *body])

    def __repr__(self) -> str:
        return f"<Report {self.title}>"

    def _repr_html_(self) -> str:
        def mark_up(paragraph: str) -> str:
            text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(paragraph))
            text = re.sub(r"https://[^\s<]+", r'<a href="\g<0>">\g<0></a>', text)
            return f'<p style="margin: 0.4em 0 0">{text}</p>'

        return _CARD.format(
            colour=_PASSED if self.passed else _WRONG,
            title=html.escape(self.title),
            paragraphs="\n".join(map(mark_up, self.paragraphs)),
        )

    def _ipython_display_(self) -> None:
        # A check that ends its cell has shown its card already: not a second time.
        shell = get_ipython()  # type: ignore[no-untyped-call]
        if self._cell is None or shell is None or self._cell != shell.execution_count:
            _display(shell, self)


def show(report: Report) -> Report:
    """Show the verdict, as a card where there is a notebook, else in print; and hand it on."""
    shell = get_ipython()  # type: ignore[no-untyped-call]
    _display(shell, report)
    return replace(report, _cell=getattr(shell, "execution_count", None))


def _display(shell: Any, report: Report) -> None:
    if hasattr(shell, "kernel"):
        card = {"text/html": report._repr_html_(), "text/plain": str(report)}
        display(card, raw=True)  # type: ignore[no-untyped-call]
    else:
        print(report)
