"""An exercise as data: a reference, probes, and the mistakes that real readers make.

The diagnosis is a comparison. The reader's function runs on a few probes, small inputs that are the
same every time. If its answers equal the reference's, it is right. If they equal, on every probe,
what a known mistake answers, the reader is told which one it is, with their own numbers. Otherwise
they are told where the first difference is. An exception of theirs goes through as it is.

To add an exercise, write the right answer, the probes, and each mistake with its explanation:

    double = Exercise(
        "double",
        task="double(x) returns 2 x.",
        reference=lambda x: 2 * x,
        probes=lambda: {"a small number": (torch.tensor(3.0),)},
    )

    @double.mistake("squared")
    def _(x):
        # its docstring: what happens, why it is wrong, how to mend it
        return x * x

`double(f)` then shows the verdict and returns the `Report`. Choose probes on which all mistakes
differ from each other: the tests demand it.
"""

import copy
import inspect
import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gptedu.check.report import Report, show

IN_PLACE = (
    "the numbers are right, but the input was changed: `x += y`, and functions whose name ends in "
    "`_`, write into the caller's tensor; `x = x + y` makes a new one. After the call, "
)
DTYPE = "the numbers are right, but the dtype of "
Probes = dict[str, tuple[Any, ...]]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Mistake:
    """A known mistake.

    Attributes:
        name: a few words, as they stand in the verdict.
        explanation: one paragraph: what happens, why it is wrong, how to mend it. It may hold
            fields in braces that `numbers` fills in.
        function: commits the mistake; it takes the place of the reader's function (or class).
        source: address of a public thread in which it was met.
        numbers: `(output, *arguments) -> dict`, the fields' values on the first probe that differs.
        topic: the exercise, filled in by it.
    """

    name: str
    explanation: str
    function: Callable[..., Any]
    source: str = ""
    numbers: Callable[..., dict[str, Any]] = lambda *_: {}
    topic: str = ""


@dataclass(frozen=True)
class Difference:
    """The first place where two answers differ: `where`, or an aspect of it, `what`."""

    where: str
    yours: str
    right: str
    what: str = ""

    def __str__(self) -> str:
        return f"{self.what}`{self.where}` is {self.yours}; it should be {self.right}."


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers for a probe, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@dataclass(eq=False)
class Exercise:
    """A check that names mistakes. Call it with the reader's function, or class, or model.

    Attributes:
        name: the exercise is `check.<name>`.
        task: what is asked, with the signature; shown by `help`.
        reference: the right answer, as code.
        probes: makes the inputs: what each is, in words, and its arguments. Fresh at every call.
        mistakes: the known ones; `mistake` adds to them.
        outputs: names of what is returned. Where there are several, the first alone is enough,
            unless `all_outputs` is set.
        run: `(subject, *arguments) -> output`; how the subject is used. The default calls it; for a
            class it builds the module, fills its weights and runs it.
    """

    name: str
    task: str
    reference: Callable[..., Any]
    probes: Callable[[], Probes]
    mistakes: tuple[Mistake, ...] = ()
    outputs: tuple[str, ...] = ("output",)
    all_outputs: bool = False
    run: Callable[..., Any] = _call

    def __post_init__(self) -> None:
        self.mistakes = tuple(replace(mistake, topic=self.name) for mistake in self.mistakes)
        self.__doc__ = self.task

    def mistake(
        self, name: str, numbers: Callable[..., dict[str, Any]] = lambda *_: {}, source: str = ""
    ) -> Callable[[F], F]:
        """Add the decorated function or class to the known mistakes; its docstring explains it."""

        def add(function: F) -> F:
            explanation = " ".join((inspect.getdoc(function) or "").split())
            known = Mistake(name, explanation, function, source, numbers, self.name)
            self.mistakes = (*self.mistakes, known)
            return function

        return add

    def __call__(self, subject: Any) -> Report:
        return show(self.diagnose(subject))

    def diagnose(self, subject: Any) -> Report:
        """The verdict, not shown."""
        if not callable(subject):
            raise ValueError(
                f"check.{self.name} was given a {type(subject).__name__}; give it your function or "
                f"class itself, not what it returns: check.{self.name}(mine)"
            )
        probes = self.probes()
        yours = self._answers(subject, probes)
        found = self._compare(yours, self._answers(self.reference, probes))
        if found is None:
            return Report(self.name, True, None, f"Equal to the reference on {', '.join(probes)}.")
        label, difference = found
        evidence = f"On {label}: {difference}"
        for mistake in self.mistakes:
            theirs = self._answers(mistake.function, probes)
            if self._compare(yours, theirs) is None:
                fields = mistake.numbers(theirs[label][0], *probes[label])
                message = f"{mistake.explanation.format(**fields)}\n\n{evidence}"
                return Report(self.name, False, mistake.name, message, mistake.source)
        verdict = "Not equal to the reference, and no mistake that we know."
        if difference.what.startswith((IN_PLACE, DTYPE)):
            verdict = "Nearly."
        message = f"{verdict}\n\n{evidence}"
        return Report(self.name, False, None, message)

    def _answers(self, subject: Callable[..., Any], probes: Probes) -> dict[str, tuple[Any, Any]]:
        """For each probe the output, and the inputs as the subject left them."""
        answers = {}
        for label, arguments in probes.items():
            given = copy.deepcopy(arguments)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                try:
                    output = self.run(subject, *given)
                except Exception as error:
                    error.add_note(f"check.{self.name}: it stopped on {label}")
                    raise
            answers[label] = (output, [g for g in given if isinstance(g, Tensor | list)])
        return answers

    def _compare(
        self, yours: dict[str, tuple[Any, Any]], right: dict[str, tuple[Any, Any]]
    ) -> tuple[str, Difference] | None:
        for label, (output, inputs) in yours.items():
            wanted, untouched = right[label]
            if difference := self._output_difference(output, wanted):
                return label, difference
            if difference := first_difference(inputs, untouched, "inputs"):
                return label, replace(difference, what=IN_PLACE + difference.what)
        return None

    def _output_difference(self, yours: Any, right: Any) -> Difference | None:
        names = self.outputs
        if len(names) > 1 and isinstance(yours, Tensor) and not self.all_outputs:
            right = right[0]
        elif len(names) > 1 and isinstance(yours, tuple | list) and len(yours) == len(right):
            pairs = zip(yours, right, names, strict=True)
            return next((found for pair in pairs if (found := first_difference(*pair))), None)
        elif len(names) > 1:
            return Difference("output", _short(yours), f"a tuple, `({', '.join(names)})`")
        return first_difference(yours, right, names[0])


def first_difference(yours: Any, right: Any, where: str) -> Difference | None:
    """Where two answers first differ: in type, shape, dtype, NaN or value; None if nowhere.

    Numbers are equal to 1e-4 of their size (in a tensor also to 1e-5), NaN equals NaN, a list
    equals a tuple. Where a tensor is wanted, a list of numbers will do.
    """
    if yours is None and right is not None:
        return Difference(where, "None", "a value (was `return` forgotten?)")
    if isinstance(right, Tensor):
        return _tensor_difference(yours, right, where)
    if isinstance(right, list | tuple) and isinstance(yours, Tensor | np.ndarray):
        yours = yours.tolist()
    if isinstance(right, list | tuple) and isinstance(yours, list | tuple):
        for i, (y, r) in enumerate(zip(yours, right, strict=False)):
            if difference := first_difference(y, r, f"{where}[{i}]"):
                return difference
        if len(yours) != len(right):
            return Difference(where, str(len(yours)), str(len(right)), "the length of ")
        return None
    if isinstance(right, int | float) and isinstance(yours, Tensor | np.generic | np.ndarray):
        yours = yours.reshape(-1)[0].item() if math.prod(yours.shape) == 1 else yours
    if isinstance(right, float) and isinstance(yours, int | float):
        close = math.isclose(yours, right, rel_tol=1e-4, abs_tol=1e-8)
        close = close or (math.isnan(yours) and math.isnan(right))
        return None if close else Difference(where, _short(float(yours)), _short(right))
    if type(yours) is not type(right):
        return Difference(where, type(yours).__name__, type(right).__name__, "the type of ")
    return None if yours == right else Difference(where, _short(yours), _short(right))


def _tensor_difference(yours: Any, right: Tensor, where: str) -> Difference | None:
    try:
        yours = torch.as_tensor(yours).detach()
    except (TypeError, ValueError, RuntimeError):
        return Difference(where, type(yours).__name__, "Tensor", "the type of ")
    if yours.shape != right.shape:
        return Difference(where, str(tuple(yours.shape)), str(tuple(right.shape)), "the shape of ")
    if yours.dtype != right.dtype:
        close = not yours.is_complex() and torch.allclose(
            yours.double(), right.double(), 1e-4, 1e-5, equal_nan=True
        )
        what = DTYPE if close else "the dtype of "
        return Difference(where, str(yours.dtype), str(right.dtype), what)
    if right.is_floating_point():
        same = torch.isclose(yours, right, rtol=1e-4, atol=1e-5, equal_nan=True)
    else:
        same = yours == right
    if same.all():
        return None
    index = tuple((~same).nonzero()[0].tolist())
    place = where + (f"[{', '.join(map(str, index))}]" if index else "")
    return Difference(place, _short(yours[index].item()), _short(right[index].item()))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else reprlib.repr(value)
