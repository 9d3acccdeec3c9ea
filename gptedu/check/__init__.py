"""Exercises that diagnose: a check runs your code on probes and names the mistake that it makes.

    check.attention(my_attention)      shows the verdict, returns a Report
    check.causal(my_model)             does the future leak into the past?
    check.MISTAKES                     all mistakes that are known

`help(check.exercise)` shows how a chapter adds its own; each file's exercises are listed below.
"""

# ruff: noqa: F401 - imported to be used as `check.<name>`

from gptedu.check.exercise import Exercise, Mistake
from gptedu.check.leaks import causal
from gptedu.check.report import Report
from gptedu.check.self_attention import attention, causal_mask, head, softmax
from gptedu.check.tokenizer import bpe_word, encode_unknown, fewest_pieces, stream
from gptedu.check.training import cross_entropy, learning_rate, next_token_pairs

# in the order of the chapters
EXERCISES = (
    *(encode_unknown, bpe_word, stream, fewest_pieces, next_token_pairs),
    *(softmax, causal_mask, attention, head),
    *(cross_entropy, learning_rate),
)
MISTAKES = tuple(mistake for exercise in EXERCISES for mistake in exercise.mistakes)
