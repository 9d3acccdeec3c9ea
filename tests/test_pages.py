"""The pages that are no chapter, against the package: their numbers, their code, their links.

What a page says of a preset is rebuilt from the presets and compared line by line. Its arithmetic
is worked out again, its code blocks are run. Terms and citations are followed to their ends.
"""

import contextlib
import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from gptedu.config import PRESETS, GPTConfig
from gptedu.model import GPT
from gptedu.parameters import count_parameters

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "book"
PAGES = sorted(BOOK.glob("*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("[0-9][0-9]_*.ipynb"))
ROLE = re.compile(r"\{(term|cite:p|cite:t)\}`([^`]*)`", re.DOTALL)
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def prose(path: Path) -> str:
    """The Markdown of a page or a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def roles(path: Path, *names: str) -> list[str]:
    """What the roles of these names point to: `word <target>` points to the target."""
    found = [content for name, content in ROLE.findall(prose(path)) if name in names]
    return [re.sub(r".*<(.*)>", r"\1", " ".join(content.split())) for content in found]


def page(name: str) -> str:
    return (BOOK / f"{name}.md").read_text(encoding="utf-8")


def table(text: str, title: str) -> list[list[str]]:
    """The cells of the first table after a heading, without its head."""
    _, _, rest = text.partition(f"\n{title}\n")
    assert rest, f"no heading {title!r}"
    lines = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert lines, f"no table below {title!r}"
    rows = [line.strip("|").split("|") for line in lines[0].splitlines()]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def code_words(cell: str) -> list[str]:
    """What stands in a cell as code."""
    return re.findall(r"`([^`]+)`", re.sub(r"\{[^}]*\}`[^`]*`", "", cell))


# The glossary ----------------------------------------------------------------------------------


def glossary() -> dict[str, str]:
    """Every term, in small letters, with its definition."""
    terms: dict[str, str] = {}
    names: list[str] = []
    for line in FENCE.findall(page("glossary"))[0][1].splitlines():
        if line and not line.startswith(" "):
            names.append(line.lower())
        elif line:
            terms |= dict.fromkeys(names, line.strip())
        else:
            names = []
    return terms


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda path: path.stem)
def test_terms_are_in_the_glossary(path: Path) -> None:
    missing = {term for term in roles(path, "term") if term.lower() not in glossary()}
    assert not missing


def test_terms_say_where_they_are_explained() -> None:
    """A link to a chapter or a page; a planned chapter is named."""
    nowhere = [
        term
        for term, text in glossary().items()
        if not re.search(r"\]\((\.\./notebooks/)?\w+\.(ipynb|md)|Chapter 1[0-3]", text)
    ]
    assert not nowhere


def test_terms_are_short_and_in_order() -> None:
    terms = [line for line in FENCE.findall(page("glossary"))[0][1].splitlines() if line]
    blocks = re.findall(r"(?:^|\n\n)([^ \n][^\n]*)", "\n" + FENCE.findall(page("glossary"))[0][1])
    first = [name.lower() for name in blocks]
    assert first == sorted(first)
    assert len(terms) > 2 * 60
    words = {term: len(text.split()) for term, text in glossary().items()}
    assert {term: n for term, n in words.items() if n > 70} == {}


def test_every_term_is_linked_from_the_text() -> None:
    """From a chapter, a page, or another entry; a second name counts with the first."""
    used = {term.lower() for path in [*PAGES, *NOTEBOOKS] for term in roles(path, "term")}
    same = {}
    for term, text in glossary().items():
        same.setdefault(text, []).append(term)
    assert [names for names in same.values() if not used & set(names)] == []


# The bibliography ------------------------------------------------------------------------------


def bibliography() -> list[tuple[str, str, dict[str, str]]]:
    """Kind, key and fields of every entry."""
    text = (BOOK / "references.bib").read_text(encoding="utf-8")
    entries = re.findall(r"^@(\w+)\{([^,]+),\n(.*?)^\}", text, re.DOTALL | re.MULTILINE)
    assert len(entries) == text.count("\n@") + text.startswith("@")
    field = re.compile(r"^\s*(\w+)\s*=\s*\{(.*)\},?$", re.MULTILINE)
    return [(kind, key, dict(field.findall(body))) for kind, key, body in entries]


def test_citations_and_entries_match() -> None:
    cited = {
        key.strip()
        for path in [*PAGES, *NOTEBOOKS]
        for keys in roles(path, "cite:p", "cite:t")
        for key in keys.split(",")
    }
    known = [key for _, key, _ in bibliography()]
    assert [key for key, n in Counter(known).items() if n > 1] == []
    assert cited - set(known) == set()
    assert set(known) - cited == set(), "entries that nobody cites"


def test_entries_are_whole_and_not_twice() -> None:
    titles = Counter()
    venue = {"article": "journal", "inproceedings": "booktitle", "techreport": "institution"}
    for kind, key, fields in bibliography():
        wanted = {"author", "title", "year"} | {venue[kind] for _ in "1" if kind in venue}
        assert wanted - {"year"} <= fields.keys(), key
        assert fields.keys() & {"year", "url", "howpublished"}, key
        if "year" in fields:
            assert key[-1:].isalnum(), key
            assert fields["year"] in key, key
        titles[re.sub(r"\W", "", fields["title"]).lower()] += 1
    assert [title for title, n in titles.items() if n > 1] == []


# Code on pages ---------------------------------------------------------------------------------

WITH_CODE = ["reading_attention_is_all_you_need", "questions"]


@pytest.mark.parametrize("name", WITH_CODE)
def test_code_of_a_page_runs_and_prints_what_it_shows(name: str) -> None:
    """Blocks in order, in one namespace; a text block after a Python block is what it prints."""
    blocks = [(kind, body) for kind, body in FENCE.findall(page(name))]
    names: dict[str, Any] = {}
    assert [kind for kind, _ in blocks].count("python") > 0
    for (kind, body), (after, shown) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if kind != "python":
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(body, names)
        assert out.getvalue() == (shown if after == "text" else ""), body


# Family tree -----------------------------------------------------------------------------------

SIZES = {"n_layer", "n_head", "d_model", "d_ff", "head_dim", "n_kv_head"}
TRAINING = {"dropout", "init", "norm_eps"}  # how to train and how to round
SMALL = {"tiny", "small", "medium"}  # for tests and experiments


def design(config: GPTConfig) -> list[str]:
    """The words in which a design differs from GPT-2 small, sizes apart."""
    gpt2 = PRESETS["gpt2"].to_dict()
    words = {
        word: value
        for word, value in config.to_dict().items()
        if word not in SIZES | TRAINING and value != gpt2[word]
    }
    if config.qkv_bias == config.bias:  # it follows
        words.pop("qkv_bias", None)
    else:
        words["qkv_bias"] = config.qkv_bias
    if config.norm_bias == config.bias or config.norm == "rmsnorm":
        words.pop("norm_bias", None)
    else:
        words["norm_bias"] = config.norm_bias
    if config.n_kv_head < config.n_head:
        words["n_kv_head"] = config.n_kv_head
    return [f"{word}={json.dumps(value)}" for word, value in words.items()]


def python_words(words: list[str]) -> set[str]:
    """As Python writes them."""
    return {w.replace("false", "False").replace("true", "True") for w in words}


def test_the_tree_tells_every_design() -> None:
    seen = []
    for name, differs in table(page("family_tree"), "## The designs"):
        for preset in code_words(name):
            seen.append(preset)
            assert set(code_words(differs)) == python_words(design(PRESETS[preset])), preset
    assert sorted(seen) == sorted(set(PRESETS) - SMALL - {"shakespeare-mini"})
    mini, large = PRESETS["shakespeare-mini"], PRESETS["shakespeare"]
    assert mini.context_length == large.context_length // 2  # and all else is equal
    assert set(design(mini)) ^ set(design(large)) == {"context_length=128", "context_length=256"}


def test_the_drawing_has_the_designs_of_the_table() -> None:
    """A coloured box for each model with a source, and a plain one for the others."""
    drawing = (BOOK / "figures" / "family-tree.html").read_text(encoding="utf-8")
    coloured = re.findall(r'class="mlp"[^>]*/><text[^>]*>([^<]*)', drawing)
    rows = [name for name, _ in table(page("family_tree"), "## The designs") if "{cite" in name]
    assert sorted(coloured) == sorted(name.partition(" {cite")[0] for name in rows)


def size(config: GPTConfig) -> str:
    shape = f"{config.n_layer}\u00a0×\u00a0{config.d_model:,}, {config.n_head}\u00a0heads"
    if config.n_head * config.head_dim != config.d_model:
        shape += f" of {config.head_dim}"
    if config.d_ff != 4 * config.d_model:
        shape += f", MLP\u00a0{config.d_ff:,}"
    return shape


def test_the_tree_counts_every_size() -> None:
    rows = table(page("family_tree"), "## The sizes")
    expected = [
        [f"`{name}`: {size(config)}", f"{count_parameters(config).total:,}"]
        for name, config in PRESETS.items()
        if name not in SMALL
    ]
    assert rows == expected


# Questions -------------------------------------------------------------------------------------


def value(sum_of_products: str) -> int:
    """What a line of arithmetic gives: "12 · 768² + 1,024"."""
    text = sum_of_products.translate(str.maketrans("·−", "*-", ","))
    text = text.replace("²", "**2")
    assert re.fullmatch(r"[\d\s*+()-]+", text), text
    return eval(text)


def test_the_count_of_gpt2_small_is_right_in_every_line() -> None:
    ledger = count_parameters(PRESETS["gpt2"])
    parts = {row.component: row.total for row in ledger.rows}
    norms = parts["attention norm"] + parts["MLP norm"] + parts["final norm"]
    *rows, total = table(page("questions"), "## How many parameters has GPT-2 small?")
    counts = []
    for _, formula, count in rows:
        counts.append(int(count.replace(",", "")))
        assert value(formula) == counts[-1], formula
    assert sum(counts) == ledger.total == int(total[-1].strip("*").replace(",", ""))
    assert counts[1:3] == [parts["token embedding"], parts["position embedding"]]
    assert counts[4] == norms


def test_the_other_counts_in_the_questions() -> None:
    """Every equation on the page that has only numbers."""
    text = page("questions") + page("family_tree") + page("reading_attention_is_all_you_need")
    found = re.findall(r"(?<![\w,.])((?:[\d,]+²?\s[·+−]\s)+[\d,]+²?)\s=\s([\d,]+)", text)
    assert len(found) >= 6
    for left, right in found:
        assert value(left) == int(right.strip(",").replace(",", "")), left
    assert f"$(1/\\sqrt2)^{{48}}$ is $0.0000000{0.5**24 * 1e8:.0f}$" in text


def twelve_lines() -> str:
    after = page("questions").partition("## A GPT in twelve lines")[2]
    return next(body for kind, body in FENCE.findall(after) if kind == "python")


@pytest.mark.parametrize("preset", ["decoder", "tiny"])
def test_twelve_lines_are_the_model(preset: str) -> None:
    """The lines on the page, on weights that are not all near zero, against the package."""
    body = [line for line in twelve_lines().splitlines() if re.match(r"    +\S", line)]
    assert len(body) == 12
    config = GPTConfig.preset(preset, mlp="gelu", position="rope", init="torch")
    model = GPT(config).eval()
    ids = torch.randint(config.vocab_size, (2, config.context_length))
    names: dict[str, Any] = {}
    exec(twelve_lines(), names)
    with torch.no_grad():
        mine, theirs = names["gpt"](model, ids), model(ids)
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    assert theirs.std() > 0.1
