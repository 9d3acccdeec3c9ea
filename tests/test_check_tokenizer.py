"""The exercises of the tokenizer's chapter: right answers of another make pass. The package's for
the merges, all cuts of a word for the fewest pieces, UTF-8 read by hand for the stream.
"""

from itertools import combinations, pairwise

import matplotlib.pyplot as plt
import pytest

from gptedu import check, plots
from gptedu.tokenizer import BPETokenizer, byte_ids


def test_a_right_bpe_word_by_the_package() -> None:
    def by_the_package(word: bytes, merges: list[tuple[bytes, bytes]]) -> list[bytes]:
        ids = {piece: i for i, piece in BPETokenizer([]).vocab.items()}
        pairs = []
        for a, b in merges:
            pairs.append((ids[a], ids[b]))
            ids[a + b] = len(ids)
        tokenizer = BPETokenizer(pairs)
        return tokenizer.pieces(tokenizer.merge_all(byte_ids(word.decode())))

    assert check.bpe_word.diagnose(by_the_package).passed


def test_a_right_stream_by_hand() -> None:
    def by_hand(pieces: list[bytes]) -> list[str]:
        waiting, texts = b"", []
        for piece in pieces:
            waiting += piece
            for n in range(len(waiting), -1, -1):
                try:
                    texts.append(waiting[:n].decode("utf-8"))
                except UnicodeDecodeError:
                    continue
                waiting = waiting[n:]
                break
        return [*texts, "\ufffd" if waiting else ""]

    assert check.stream.diagnose(by_hand).passed


def test_a_right_count_by_trying_every_cut() -> None:
    def by_trying(word: bytes, vocabulary: set[bytes]) -> int:
        for n in range(len(word)):
            for cuts in combinations(range(1, len(word)), n):
                ends = [0, *cuts, len(word)]
                pieces = {word[i:j] for i, j in pairwise(ends)}
                if pieces <= vocabulary:
                    return n + 1
        return 0

    assert check.fewest_pieces.diagnose(by_trying).passed


def test_a_right_encoding_by_a_dictionary() -> None:
    def by_dictionary(text: str, symbols: str) -> list[int]:
        ids = {symbol: i for i, symbol in enumerate(symbols)}
        return [ids.get(symbol, len(symbols)) for symbol in text]

    assert check.encode_unknown.diagnose(by_dictionary).passed


def test_the_figure_of_tokens() -> None:
    _, ax = plt.subplots()
    plots.tokens({"cut": ["a\n", b" b", b"\xc3", "\u0301", "é"]}, ax)
    labels = [text.get_text() for text in ax.texts]
    plt.close(ax.figure)
    assert labels == ["a↵", "␣b", r"\xc3", r"\xcc\x81", "é", "cut: 5 tokens"]
    with pytest.raises(ValueError, match="91 letters"):
        plots.tokens({"long": ["x"] * 91})
