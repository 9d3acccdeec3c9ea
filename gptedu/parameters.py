"""Where the parameters are: arithmetic on the config, no model.

    a block: 4 C^2 (query, key, value, output) + 8 C^2 (MLP)        a model: 12 L C^2 + V C

Chapter 8. The rule of thumb above is near (Kaplan et al. 2020, section 2.1, has its first term);
this ledger is exact: biases, gains, positions, fewer key heads. Each row states its formula in the
shape letters, and its count is that formula, evaluated. Left out: sinusoids, rotary angles and
masks, which are computed, not learned.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from gptedu.config import GPTConfig


@dataclass(frozen=True)
class Row:
    """One component: `formula` in the shape letters, `count` of one copy, and how many `copies`."""

    component: str
    formula: str
    count: int
    copies: int

    @property
    def total(self) -> int:
        """The parameters of all copies."""
        return self.count * self.copies


@dataclass(frozen=True)
class Ledger:
    """The parameters by component. `print(ledger)` shows the table."""

    letters: dict[str, int]
    rows: tuple[Row, ...]

    @property
    def total(self) -> int:
        """The parameters of the whole model."""
        return sum(row.total for row in self.rows)

    def _cells(self) -> list[tuple[str, ...]]:
        head = ("component", "formula", "one", "copies", "total", "share")
        body = [
            (r.component, r.formula, f"{r.count:,}", str(r.copies), f"{r.total:,}", self._share(r))
            for r in self.rows
        ]
        return [head, *body, ("total", "", "", "", f"{self.total:,}", "100.0 %")]

    def _share(self, row: Row) -> str:
        return f"{100 * row.total / self.total:.1f} %"

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

        def line(row: tuple[str, ...]) -> str:
            left = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
            right = [text.rjust(width) for text, width in zip(row[2:], widths[2:], strict=True)]
            return "  ".join(left + right)

        head, *body, total = map(line, cells)
        rule = "─" * len(head)
        letters = "  ".join(f"{letter}={value}" for letter, value in self.letters.items())
        return "\n".join([letters, rule, head, rule, *body, rule, total])

    def _repr_html_(self) -> str:
        head, *body = self._cells()
        html = "".join(f'<th scope="col">{text}</th>' for text in head)
        lines = ["".join(f"<td>{text}</td>" for text in row) for row in body]
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in [html, *lines])}</table>"


def count_parameters(config: GPTConfig) -> Ledger:
    """Count every parameter of `GPT(config)`, by component, without building it.

    Returns:
        A ledger with `.rows` and `.total`, exact to the unit.
    """
    letters = shape_letters(config)
    rows = tuple(
        Row(component, formula, evaluate(formula, letters), copies)
        for component, formula, copies in _formulas(config)
    )
    return Ledger(letters, rows)


def shape_letters(config: GPTConfig) -> dict[str, int]:
    """The sizes behind the letters of the formulas."""
    return {
        "V": config.vocab_size,
        "T": config.context_length,
        "L": config.n_layer,
        "C": config.d_model,
        "H": config.n_head,
        "K": config.n_kv_head,
        "D": config.head_dim,
        "F": config.d_ff,
    }


def evaluate(formula: str, letters: dict[str, int]) -> int:
    """The value of a sum of products: "C·F + F" with the letters' sizes."""
    return sum(
        prod(letters[factor] if factor in letters else int(factor) for factor in term.split("·"))
        for term in formula.split(" + ")
    )


def _formulas(config: GPTConfig) -> Iterator[tuple[str, str, int]]:
    """The components in the order in which data meets them: name, formula, copies."""
    layers = config.n_layer
    gain_and_bias = config.norm == "layernorm" and config.norm_bias
    norm = "C + C" if gain_and_bias else "C"

    yield "token embedding", "V·C", 1
    if config.position == "learned":
        yield "position embedding", "T·C", 1
    yield "attention norm", norm, layers
    yield "query", _linear("C", "H·D", config.qkv_bias), layers
    yield "key", _linear("C", "K·D", config.qkv_bias), layers
    yield "value", _linear("C", "K·D", config.qkv_bias), layers
    if config.qk_norm:
        yield "query and key norm", "2·D", layers
    yield "attention output", _linear("H·D", "C", config.bias), layers
    yield "MLP norm", norm, layers
    yield "MLP up", _linear("C", "F", config.bias), layers
    if config.mlp in ("swiglu", "geglu"):
        yield "MLP gate", _linear("C", "F", config.bias), layers
    yield "MLP down", _linear("F", "C", config.bias), layers
    if config.norm_position == "pre":
        yield "final norm", norm, 1
    if config.tie_embeddings:
        yield "head (tied to the embedding)", "0", 1
    else:
        yield "head", _linear("C", "V", config.bias), 1


def _linear(inputs: str, outputs: str, bias: bool | None) -> str:
    """A matrix, and one bias an output where there are biases."""
    return f"{inputs}·{outputs} + {outputs}" if bias else f"{inputs}·{outputs}"
