"""The tokenizer explorer: own text as characters and as BPE tokens, one merge at a time.

    text -> words -> bytes -> merge 1, merge 2, ... -> ids

Chapter 1. Sennrich, Haddow and Birch 2016, section 3.2. A page has no kernel: the merges travel in
the stored output, and `static/tokenizer.js` applies them, or learns others from the reader's text.
"""

from functools import cache
from typing import Any

import traitlets

from gptedu.corpus import pocket_plays
from gptedu.tokenizer import BPETokenizer, CharTokenizer
from gptedu.widgets.host import Widget, table


@cache
def _of_the_plays() -> tuple[BPETokenizer, CharTokenizer]:
    text = pocket_plays.sample(50_000, seed=1)
    return BPETokenizer.train(text, 300), CharTokenizer(text)


class TokenizerExplorer(Widget):
    """Type a text and see its tokens; step through the merges that made them.

    Args:
        tokenizer: your own, of either kind (None: 300 merges and the characters of pocket plays).

    Attributes:
        text: what is cut into tokens; the first 200 characters are shown.
        step: so many merges are applied; -1 is all of them.
        learn_from: "given" (the tokenizer's own merges) or "text" (BPE is trained on `text`).
    """

    _name = "tokenizer"
    _height = 560
    text = traitlets.Unicode("Katrin, the lady and the butter 🙂").tag(sync=True, book=True)
    step = traitlets.Int(-1, min=-1).tag(sync=True, book=True)
    learn_from = traitlets.Enum(("given", "text"), "given").tag(sync=True, book=True)
    corpus = traitlets.Unicode("pocket plays").tag(sync=True, book=True)
    bpe = traitlets.Dict().tag(sync=True, book=True)
    characters = traitlets.Dict().tag(sync=True, book=True)

    def __init__(
        self, tokenizer: BPETokenizer | CharTokenizer | None = None, **traits: Any
    ) -> None:
        bpe, characters = _of_the_plays()
        if isinstance(tokenizer, BPETokenizer):
            bpe = tokenizer
            traits.setdefault("corpus", "your tokenizer")
        elif tokenizer is not None:
            characters = tokenizer
        traits |= {"bpe": bpe.to_dict(), "characters": characters.to_dict()}
        super().__init__(**traits)

    def fallback(self) -> str:
        """The tokens and their ids as a table."""
        merges = self.bpe["merges"]
        bpe = BPETokenizer(merges[: self.step] if self.step >= 0 else merges)
        known = self.text.encode("utf-8", errors="ignore").decode("utf-8")[:200]
        rows = [[bpe.decode([i]), i] for i in bpe.encode(known)]
        return table(f"{len(known)} characters, {len(rows)} BPE tokens", ["token", "id"], rows)
