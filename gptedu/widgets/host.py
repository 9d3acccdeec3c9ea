"""One widget, two hosts: a running notebook, and the built page without a kernel.

In a notebook a widget is an anywidget: its traits are shared with the browser. Its stored output is
HTML that holds the same traits as JSON, and a table for readers without JavaScript; in the page,
`static/lib/core.js` reads the JSON and runs the same JavaScript file.

    class Demo(Widget):
        _name = "demo"                                          # static/demo.js
        layer = traitlets.Int(1).tag(sync=True, book=True)      # book: it travels with the page

Weights never travel in a stored output: the page names a shipped model, which `weights_script`
turned into a script that the page may load from disk. Left out: bundlers and CDNs.
"""

import base64
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import traitlets
from safetensors.torch import save as to_bytes

from gptedu.checkpoint import ASSETS, load
from gptedu.model import GPT
from gptedu.tokenizer import BPETokenizer, CharTokenizer, Tokenizer

STATIC = Path(__file__).parent / "static"
LIBRARY = ("gpt.js", "tokenizer.js", "core.js")
STYLE = (STATIC / "widgets.css").read_text(encoding="utf-8")


def escape(text: object) -> str:
    """Text that is safe in HTML and in UTF-8; half a surrogate pair becomes a question mark."""
    return html.escape(str(text).encode("utf-8", errors="replace").decode("utf-8"))


def table(caption: str, columns: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table, escaped; the first cell of a row is its heading."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f"<table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def to_json(state: dict[str, Any]) -> str:
    """JSON for a `<script>` element: pure ASCII, and no `<` that could end the element.

    ValueError for a number that JSON has no word for (NaN, infinity).
    """
    try:
        text = json.dumps(state, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise ValueError(f"the state of a widget must be plain JSON: {error}") from None
    return text.replace("<", "\\u003c")


class Widget(anywidget.AnyWidget):
    """The base of all widgets. A subclass has `_name`, traits, and `fallback`.

    Attributes:
        python: name of the class, for the line that restores a state.
    """

    _name: ClassVar[str] = ""  # of the JavaScript file and of what it registers
    _folder: ClassVar[Path] = STATIC  # where that file lies
    _height: ClassVar[int] = 0  # px kept free in the page, so that it does not move when it wakes
    _css = STYLE
    python = traitlets.Unicode().tag(sync=True, book=True)

    def __init__(self, **traits: Any) -> None:
        if unknown := sorted(traits.keys() - set(self.trait_names())):
            known = ", ".join(sorted(set(self.trait_names(book=True)) - {"python"}))
            name = self._default_python()
            raise ValueError(f"{name} has no {', '.join(unknown)}; its state is {known}")
        super().__init__(**traits)

    def __init_subclass__(cls, **options: Any) -> None:
        if "_name" in cls.__dict__:  # not the throw-away class that add_traits makes
            files = [STATIC / "lib" / file for file in LIBRARY]
            files.append(cls._folder / f"{cls._name}.js")
            code = "\n".join(file.read_text(encoding="utf-8") for file in files)
            cls._esm = f"{code}\nexport default globalThis.GptEdu.widgets.{cls._name};\n"
        super().__init_subclass__(**options)

    @traitlets.default("python")
    def _default_python(self) -> str:
        return next(cls.__name__ for cls in type(self).__mro__ if "_name" in cls.__dict__)

    def fallback(self) -> str:
        """HTML for readers without JavaScript; build it with `table`."""
        return "<p>Run the notebook, or turn JavaScript on, to use this figure.</p>"

    def book_state(self) -> dict[str, Any]:
        """What the page gets: all traits tagged `book=True`."""
        return {name: getattr(self, name) for name in sorted(self.trait_names(book=True))}

    def book_html(self) -> str:
        """The widget as a piece of a page; also for a page that is no notebook."""
        room = f' style="min-height:{self._height}px"' if self._height else ""
        return (
            f'<div data-gptedu-widget="{escape(self._name)}"{room}>'
            f'<div class="gptedu-fallback">{self.fallback()}</div>'
            f'<script type="application/json">{to_json(self.book_state())}</script></div>'
        )

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, meta = super()._repr_mimebundle_(**options) or ({}, {})
        plain = f"{self.python}()"  # the usual one has an address, which changes with every run
        return {**data, "text/plain": plain, "text/html": self.book_html()}, meta


class ModelWidget(Widget):
    """A widget that runs a model: a shipped one, or in a running notebook the reader's own.

    Args:
        model: your model (None: the shipped `model_name`).
        tokenizer: the tokenizer that goes with it.

    Attributes:
        model_name: the shipped model; empty while it is your own.
        weights: safetensors bytes for the browser; never part of a stored page.
    """

    SHIPPED: ClassVar[str] = "shakespeare-mini"
    model_name = traitlets.Unicode().tag(sync=True, book=True)
    weights = traitlets.Bytes().tag(sync=True)

    def __init__(
        self, model: GPT | None = None, tokenizer: Tokenizer | None = None, **traits: Any
    ) -> None:
        if model is not None or tokenizer is not None:
            traits |= {"weights": pack(model, tokenizer), "model_name": ""}
        else:
            name = traits.setdefault("model_name", self.SHIPPED)
            traits["weights"] = _shipped(name).read_bytes()
        super().__init__(**traits)

    def show(self, model: GPT, tokenizer: Tokenizer) -> None:
        """Look at this model from now on, or at its newest weights."""
        with self.hold_sync():
            self.model_name = ""
            self.weights = pack(model, tokenizer)

    def stored(self) -> tuple[GPT, CharTokenizer | BPETokenizer]:
        """The model that stands in the page, and its tokenizer: the shipped one, never your own."""
        return load(self.model_name or self.SHIPPED)

    def book_state(self) -> dict[str, Any]:
        """As every widget's; in the place of your own model stands the shipped one."""
        return super().book_state() | {"model_name": self.model_name or self.SHIPPED}


def usable(tokenizer: Tokenizer, text: str) -> str:
    """The text without the characters that have no id, as `usable` in lib/tokenizer.js."""
    if not isinstance(tokenizer, CharTokenizer):
        return text
    return "".join(symbol for symbol in text if symbol in tokenizer.ids)


def _shipped(name: str) -> Path:
    file = ASSETS / f"{name}.safetensors"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in ASSETS.glob("*.safetensors"))) or "none"
        raise ValueError(f"no model called {name!r} comes with the book; there are: {known}")
    return file


def pack(model: GPT | None, tokenizer: Tokenizer | None) -> bytes:
    """A model and its tokenizer as the bytes of one safetensors file, in fp32."""
    if model is None or tokenizer is None:
        missing = "model" if model is None else "tokenizer"
        raise ValueError(f"a model and its tokenizer belong together: give {missing}=... too")
    if tokenizer.vocab_size != model.config.vocab_size:
        raise ValueError(
            f"the tokenizer knows {tokenizer.vocab_size} tokens, but the model has "
            f"vocab_size={model.config.vocab_size}: use the tokenizer that it was trained with"
        )
    words = {"config": model.config.to_dict(), "tokenizer": tokenizer.to_dict()}
    return to_bytes(
        {name: p.detach().float().cpu().contiguous() for name, p in model.named_parameters()},
        {word: json.dumps(value) for word, value in words.items()},
    )


def weights_script(file: Path) -> str:
    """A safetensors file as a script that a page may load, from disk too: `weights/NAME.js`."""
    content = base64.b64encode(file.read_bytes()).decode("ascii")
    return f"GptEdu.registerWeights({json.dumps(file.stem)},\n{json.dumps(content)});\n"
