"""Inside a GPT: the package behind the book. A module for each concept, from the ground up."""

from gptedu import check
from gptedu.checkpoint import load, save
from gptedu.config import GPTConfig, TrainConfig
from gptedu.generation import generate
from gptedu.model import GPT
from gptedu.parameters import count_parameters
from gptedu.tokenizer import BPETokenizer, CharTokenizer
from gptedu.tracing import trace
from gptedu.training import train

__all__ = [
    "GPT",
    "BPETokenizer",
    "CharTokenizer",
    "GPTConfig",
    "TrainConfig",
    "check",
    "count_parameters",
    "generate",
    "load",
    "save",
    "trace",
    "train",
]
