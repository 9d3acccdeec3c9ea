"""Exercises of chapter 1: unknown characters, order of merges, streaming text, fewest pieces.

Each has a reference that shares no code with the tokenizer of the package.
"""

import codecs
from collections.abc import Callable
from functools import partial
from typing import Any

from gptedu.check.exercise import Exercise, Mistake, Probes

# unknown characters


def _with_unknown(text: str, symbols: str, unknown: Callable[[str], int | None]) -> list[int]:
    ids = [symbols.index(c) if c in symbols else unknown(symbols) for c in text]
    return [i for i in ids if i is not None]


def _unknown_numbers(ids: list[int], text: str, symbols: str) -> dict[str, Any]:
    at = next(i for i, c in enumerate(text) if c not in symbols)
    return {"n": len(ids), "characters": len(text), "symbol": text[at], "V": len(symbols),
            "last": symbols[-1], "first": symbols[0]}  # fmt: skip


encode_unknown = Exercise(
    "encode_unknown",
    task="encode_unknown(text, symbols): a list with one id for each character of text, its place "
    "in symbols. All characters that are not in symbols share the next free id, len(symbols).",
    reference=partial(_with_unknown, unknown=len),
    probes=lambda: {
        "'café' with the symbols 'acfz'": ("café", "acfz"),
        "'x-ray' with the symbols 'ary'": ("x-ray", "ary"),
        "a text of known characters": ("bcab", "abc"),
    },
    outputs=("ids",),
    mistakes=(
        Mistake(
            "minus one from find",
            "`symbols.find` answers -1 for {symbol!r}, which it does not find. Python does not "
            "complain: as an index, -1 is the last row of every table, so the model would read "
            "{last!r}. A silent wrong letter is worse than an error. Ask `if c in symbols` first.",
            partial(_with_unknown, unknown=lambda symbols: -1),
            numbers=_unknown_numbers,
        ),
        Mistake(
            "unknown characters dropped",
            "You return {n} ids for {characters} characters: {symbol!r} is gone, and the letters "
            "on its two sides are now neighbours. The model would learn from a text that nobody "
            "wrote.",
            partial(_with_unknown, unknown=lambda symbols: None),
            numbers=_unknown_numbers,
        ),
        Mistake(
            "off by one",
            "You give {symbol!r} the id len(symbols) - 1, but this is the id of {last!r}. Ids "
            "start at 0, so {V} symbols have the ids 0 to {V} - 1, and the next free one is {V}.",
            partial(_with_unknown, unknown=lambda symbols: len(symbols) - 1),
            numbers=_unknown_numbers,
        ),
        Mistake(
            "unknown is zero",
            "You give {symbol!r} the id 0, but that is the id of {first!r}. Zero is a token like "
            "any other, and not a word for nothing.",
            partial(_with_unknown, unknown=lambda symbols: 0),
            numbers=_unknown_numbers,
        ),
    ),
)


# the order of merges


def _joined(pieces: list[bytes], at: int) -> list[bytes]:
    return [*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :]]


def _merged(
    word: bytes,
    merges: list[tuple[bytes, bytes]],
    rank: Callable[[list[bytes], list[tuple[bytes, bytes]], int], Any],
    once: bool = False,
) -> list[bytes]:
    """Join the known pair of lowest rank, leftmost first, until no known pair is left."""
    pieces = [word[i : i + 1] for i in range(len(word))]
    while True:
        places = [i for i in range(len(pieces) - 1) if (pieces[i], pieces[i + 1]) in merges]
        if not places:
            return pieces
        pieces = _joined(pieces, min(places, key=lambda i: rank(pieces, merges, i)))
        if once:
            return pieces


def _learnt_first(pieces: list[bytes], merges: list[tuple[bytes, bytes]], at: int) -> int:
    return merges.index((pieces[at], pieces[at + 1]))


def _longest_match(word: bytes, merges: list[tuple[bytes, bytes]]) -> list[bytes]:
    known = {a + b for a, b in merges}
    pieces = []
    while word:
        ends = [end for end in range(len(word), 1, -1) if word[:end] in known]
        end = ends[0] if ends else 1
        pieces.append(word[:end])
        word = word[end:]
    return pieces


def _order_probes() -> Probes:
    first = [(b"b", b"c"), (b"a", b"b"), (b"ab", b"c"), (b"bc", b"d"), (b"a", b"bcd")]
    return {
        "the word 'abcd'": (b"abcd", first),
        "the word 'abcab'": (b"abcab", first),
        "the word 'aaaab'": (b"aaaab", [(b"a", b"a"), (b"aa", b"b"), (b"a", b"b"), (b"aa", b"aa")]),
        "a word without a known pair": (b"xyz", first),
    }


def _pieces(output: list[bytes], *_: Any) -> dict[str, Any]:
    return {"pieces": " ".join(piece.decode() for piece in output)}


bpe_word = Exercise(
    "bpe_word",
    task="bpe_word(word, merges): the pieces (a list of bytes) into which BPE cuts the bytes of a "
    "word. merges is a list of pairs of bytes, in the order in which they were learnt.",
    reference=partial(_merged, rank=_learnt_first),
    probes=_order_probes,
    outputs=("pieces",),
    mistakes=(
        Mistake(
            "longest match first",
            "You cut off the longest known piece, from left to right: {pieces}. That is how "
            "WordPiece reads. BPE replays its history instead: the pair that was learnt first is "
            "joined first, even where that closes the way to a longer piece.",
            _longest_match,
            source="https://github.com/openai/tiktoken/issues/99",
            numbers=_pieces,
        ),
        Mistake(
            "learnt last, first",
            "You join the pair that was learnt last: {pieces}. The early merges are the frequent "
            "ones, and the late ones were learnt on text in which the early ones had been made.",
            partial(_merged, rank=lambda p, m, at: -_learnt_first(p, m, at)),
            numbers=_pieces,
        ),
        Mistake(
            "leftmost pair first",
            "You join the leftmost pair that is in the list, whenever it was learnt: {pieces}. Of "
            "all pairs in the word, take the one with the smallest `merges.index(pair)`.",
            partial(_merged, rank=lambda p, m, at: at),
            source="https://github.com/joshcarp/llm.go/issues/2",
            numbers=_pieces,
        ),
        Mistake(
            "only one merge",
            "You stop after the first merge: {pieces}. Repeat until the word has no known pair.",
            partial(_merged, rank=_learnt_first, once=True),
            numbers=_pieces,
        ),
    ),
)


# text as it streams in


def _streamed(pieces: list[bytes], errors: str = "replace", end: bool = True) -> list[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    texts = [decoder.decode(piece) for piece in pieces]
    return [*texts, decoder.decode(b"", final=True)] if end else texts


def _apart(pieces: list[bytes], errors: str) -> list[str]:
    return [*(piece.decode("utf-8", errors) for piece in pieces), ""]


def _all_again(pieces: list[bytes]) -> list[str]:
    so_far = [b"".join(pieces[: i + 1]).decode("utf-8", "ignore") for i in range(len(pieces))]
    return [*so_far, ""]


def _delta(pieces: list[bytes]) -> list[str]:
    """Decode all so far, cut off what was shown: a broken end is shown, and never taken back."""
    shown, texts = 0, []
    for i in range(len(pieces)):
        text = b"".join(pieces[: i + 1]).decode("utf-8", "replace")
        texts.append(text[shown:])
        shown = max(shown, len(text))
    return [*texts, ""]


def _shown(output: list[str], *_: Any) -> dict[str, Any]:
    return {"shown": "".join(output), "n": len(output)}


stream = Exercise(
    "stream",
    task="stream(pieces): for each piece (bytes) the text that can be shown as soon as it has "
    "come, whole characters only, '' if there are none; and at the end one more text, for bytes "
    "that never became a character, '\ufffd' or ''. A list of len(pieces) + 1 strings.",
    reference=_streamed,
    probes=lambda: {
        "a rocket in two pieces": ([b"Go \xf0\x9f", b"\x9a\x80!", b" Up"],),
        "'né' byte by byte": ([b"n", b"\xc3", b"\xa9"],),
        "a text that ends inside a character": ([b"hi ", b"\xe4\xbd"],),
        "no pieces": ([],),
    },
    outputs=("texts",),
    mistakes=(
        Mistake(
            "each piece by itself",
            "You decode each piece alone, and the reader sees {shown!r}. Both halves of the "
            "character are invalid by themselves. Keep the bytes that are not yet a character, "
            "and put them in front of the next piece.",
            partial(_apart, errors="replace"),
            source="https://github.com/exo-explore/exo/pull/1691",
            numbers=_shown,
        ),
        Mistake(
            "broken bytes ignored",
            "With errors='ignore' both halves of the character vanish: the reader sees {shown!r}. "
            "Keep the bytes that are not yet a character, and put them in front of the next piece.",
            partial(_apart, errors="ignore"),
            source="https://github.com/replicate/cog-llama-template/pull/75",
            numbers=_shown,
        ),
        Mistake(
            "the whole text again",
            "You return all the text so far each time, so the reader sees {shown!r}. Return only "
            "what is new.",
            _all_again,
            numbers=_shown,
        ),
        Mistake(
            "half a character shown too early",
            "You decode all bytes so far and show what is new. The half character was shown as "
            "'\ufffd', and when its other half comes, that place counts as shown: the reader sees "
            "{shown!r}. Show an unfinished character only at the end.",
            _delta,
            source="https://github.com/Blaizzy/mlx-vlm/pull/1076",
            numbers=_shown,
        ),
        Mistake(
            "the end forgotten",
            "You return {n} texts, one for each piece. When the stream ends inside a character, "
            "its bytes are still waiting: say so with a last text.",
            partial(_streamed, end=False),
            numbers=_shown,
        ),
        Mistake(
            "the end dropped",
            "A stream that ends inside a character ends in '\ufffd' (decode the rest with "
            "errors='replace'). Yours drops the bytes, and nobody learns that something is "
            "missing.",
            partial(_streamed, errors="ignore"),
        ),
    ),
)


# fewest pieces


def _fewest(word: bytes, vocabulary: set[bytes]) -> int:
    best = [0]
    for end in range(1, len(word) + 1):
        best.append(1 + min(best[i] for i in range(end) if word[i:end] in vocabulary))
    return best[-1]


def _greedy(word: bytes, vocabulary: set[bytes], backwards: bool = False) -> int:
    count = 0
    while word:
        cuts = range(len(word)) if backwards else range(len(word), 0, -1)
        if backwards:
            word = next(word[:i] for i in cuts if word[i:] in vocabulary)
        else:
            word = next(word[i:] for i in cuts if word[:i] in vocabulary)
        count += 1
    return count


def _counts(yours: int, word: bytes, vocabulary: set[bytes]) -> dict[str, Any]:
    return {"yours": yours, "word": word.decode(), "right": _fewest(word, vocabulary)}


def _set_of(*pieces: bytes) -> set[bytes]:
    return {bytes([letter]) for letter in b"abcdef"} | set(pieces)


fewest_pieces = Exercise(
    "fewest_pieces",
    task="fewest_pieces(word, vocabulary): the smallest number of pieces, all of them in the set "
    "vocabulary, that joined give the bytes word. Every single byte of the word is in it.",
    reference=_fewest,
    probes=lambda: {
        "'abcdef' with abc, abcd and def": (b"abcdef", _set_of(b"abc", b"abcd", b"def")),
        "'abcdef' with abc, cdef and def": (b"abcdef", _set_of(b"abc", b"cdef", b"def")),
        "'abcdef' with abc, bcde and def": (b"abcdef", _set_of(b"abc", b"bcde", b"def")),
        "'fab' with no other piece": (b"fab", _set_of()),
        "no bytes": (b"", _set_of()),
    },
    outputs=("pieces",),
    mistakes=(
        Mistake(
            "longest piece first",
            "You take the longest piece that fits, from the left. On {word} that needs {yours} "
            "pieces, where {right} are enough: a long piece can leave a bad rest. Ask for every "
            "cut.",
            _greedy,
            numbers=_counts,
        ),
        Mistake(
            "longest piece first, from the right",
            "You take the longest piece that fits, from the right. On {word} that needs {yours} "
            "pieces, where {right} are enough. Neither end is safe: ask for every cut.",
            partial(_greedy, backwards=True),
            numbers=_counts,
        ),
        Mistake(
            "number of cuts",
            "You count the cuts between the pieces. There is one piece more than there are cuts.",
            lambda word, vocabulary: _fewest(word, vocabulary) - 1,
        ),
    ),
)
