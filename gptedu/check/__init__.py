"""Exercises that diagnose: a check runs your code on probes and names the mistake that it makes.

    check.attention(my_attention)      shows the verdict, returns a Report
    check.causal(my_model)             does the future leak into the past?
    check.MISTAKES                     all mistakes that are known

`help(check.exercise)` shows how a chapter adds its own; each file's exercises are listed below.
"""

# ruff: noqa: F401 - imported to be used as `check.<name>`

from gptedu.check.bugs import SUSPECTS, Patient, healthy, patient, verdict
from gptedu.check.counting import (
    count_block,
    count_model,
    find_shape,
    kv_cache_bytes,
    swiglu_width,
    training_flops,
)
from gptedu.check.exercise import Exercise, Mistake
from gptedu.check.feed_forward import dropout, gelu, mlp, swiglu
from gptedu.check.heads import grouped_attention, head_writes, merge_heads, multihead, split_heads
from gptedu.check.leaks import causal
from gptedu.check.positions import embed, nearest, rotate, sinusoids
from gptedu.check.report import Report
from gptedu.check.residual import fold_norm, layer_norm, pre_norm_block, rms_norm, stack
from gptedu.check.scaling import crossover, device_bytes, ring
from gptedu.check.self_attention import attention, causal_mask, head, softmax
from gptedu.check.tokenizer import bpe_word, encode_unknown, fewest_pieces, stream
from gptedu.check.training import accumulate, cross_entropy, learning_rate, next_token_pairs
from gptedu.check.whole import forward, initial_loss, masked_loss, tie, value_head

# in the order of the chapters
EXERCISES = (
    *(encode_unknown, bpe_word, stream, fewest_pieces, next_token_pairs),
    *(embed, nearest, sinusoids, rotate),
    *(softmax, causal_mask, attention, head),
    *(split_heads, merge_heads, multihead, head_writes, grouped_attention),
    *(gelu, mlp, swiglu, dropout),
    *(layer_norm, rms_norm, pre_norm_block, stack, fold_norm),
    *(initial_loss, forward, tie, value_head, masked_loss),
    *(count_block, swiglu_width, count_model),
    *(training_flops, kv_cache_bytes, find_shape),
    *(cross_entropy, learning_rate, accumulate),
    *(crossover, device_bytes, ring),
)
MISTAKES = tuple(mistake for exercise in EXERCISES for mistake in exercise.mistakes)
