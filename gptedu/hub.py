"""Other people's weights: the same model under other names. Tables, in both directions.

A checkpoint in the Hugging Face format is a config.json and tensors by name. Each table below has
a line for each module, theirs on the left, ours on the right; `*` is the layer. GPT-2 keeps its
matrices the other way round (its Conv1D computes x W, torch's Linear x W^T), and queries, keys and
values in one. Llama's rotary pairs are halves, as ours are, so its rows keep their order.

Chapter 7. Radford et al. 2019; Touvron et al. 2023. GPT-2's `gelu_new` is our GELU, the tanh form.
Left out: tokenizers, stretched rotary frequencies (Llama 3.1 and later), Gemma's scaled embeddings.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from gptedu.config import GPTConfig
from gptedu.model import GPT

BUFFERS = re.compile(r"\.attn\.(masked_)?bias$|\.rotary_emb\.inv_freq$")  # of older files


@dataclass(frozen=True)
class Family:
    """How one design spells its config and its weights."""

    prefix: str  # of all their names but the head's; some files leave it out
    modules: str  # a line for each of their modules: its name, then ours
    transposed: tuple[str, ...]
    words: str  # theirs=ours
    fixed: dict[str, Any]  # our words for what the design takes for granted
    needs: dict[str, Any]  # their words that must be absent or have this value

    def lines(self, n_layer: int) -> Iterator[tuple[str, list[str]]]:
        """The table of weights, layer by layer: their tensor, and what it holds of ours."""
        for theirs, *ours in map(str.split, self.modules.strip().splitlines()):
            full = theirs if theirs == "lm_head" else self.prefix + theirs
            for layer in range(n_layer if "*" in theirs else 1):
                for kind in ("weight", "bias"):
                    names = [f"{n}.{kind}".replace("*", str(layer)) for n in (full, *ours)]
                    yield names[0], names[1:]

    @property
    def pairs(self) -> dict[str, str]:
        """The table of words: theirs, ours."""
        return dict(pair.split("=") for pair in self.words.split())


GPT2 = Family(
    prefix="transformer.",
    modules="""
        wte              token_embedding
        wpe              position_embedding
        h.*.ln_1         blocks.*.attention_norm
        h.*.attn.c_attn  blocks.*.attention.query blocks.*.attention.key blocks.*.attention.value
        h.*.attn.c_proj  blocks.*.attention.output
        h.*.ln_2         blocks.*.mlp_norm
        h.*.mlp.c_fc     blocks.*.mlp.up
        h.*.mlp.c_proj   blocks.*.mlp.down
        ln_f             final_norm
        lm_head          head
    """,
    transposed=("c_attn.weight", "c_proj.weight", "c_fc.weight"),
    words="""
        vocab_size=vocab_size n_positions=context_length n_layer=n_layer n_head=n_head
        n_embd=d_model n_inner=d_ff resid_pdrop=dropout layer_norm_epsilon=norm_eps
    """,
    fixed={"position": "learned", "norm": "layernorm", "mlp": "gelu", "tie_embeddings": True},
    needs={
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,  # our untied head has a bias, theirs has none
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    },
)

LLAMA = Family(
    prefix="model.",
    modules="""
        embed_tokens                       token_embedding
        layers.*.input_layernorm           blocks.*.attention_norm
        layers.*.self_attn.q_proj          blocks.*.attention.query
        layers.*.self_attn.k_proj          blocks.*.attention.key
        layers.*.self_attn.v_proj          blocks.*.attention.value
        layers.*.self_attn.o_proj          blocks.*.attention.output
        layers.*.self_attn.q_norm          blocks.*.attention.query_norm
        layers.*.self_attn.k_norm          blocks.*.attention.key_norm
        layers.*.post_attention_layernorm  blocks.*.mlp_norm
        layers.*.mlp.gate_proj             blocks.*.mlp.gate
        layers.*.mlp.up_proj               blocks.*.mlp.up
        layers.*.mlp.down_proj             blocks.*.mlp.down
        norm                               final_norm
        lm_head                            head
    """,
    transposed=(),
    words="""
        vocab_size=vocab_size max_position_embeddings=context_length num_hidden_layers=n_layer
        num_attention_heads=n_head num_key_value_heads=n_kv_head head_dim=head_dim
        hidden_size=d_model intermediate_size=d_ff rope_theta=rope_base
        tie_word_embeddings=tie_embeddings rms_norm_eps=norm_eps
    """,
    fixed={"position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "bias": False},
    needs={
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "use_sliding_window": False,
        "rope_type": "default",
        "rope_scaling": None,
    },
)

FAMILIES = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": replace(LLAMA, words=LLAMA.words + " sliding_window=window"),
    "qwen2": replace(LLAMA, fixed=LLAMA.fixed | {"qkv_bias": True}),
    "qwen3": replace(LLAMA, fixed=LLAMA.fixed | {"qk_norm": True}),
}


def config_from_hub(words: dict[str, Any]) -> GPTConfig:
    """Our config for the content of a config.json.

    Raises ValueError for a design that our words cannot say.
    """
    words = words | (words.get("rope_parameters") or {})  # where newer files keep rope_theta
    kind = words.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(f"model_type={kind!r} is not known; known: {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    for word, value in family.needs.items():
        if words.get(word, value) != value:
            raise ValueError(f"{kind} with {word}={words[word]!r} is not built; only {value!r} is")
    ours = {our: words[their] for their, our in family.pairs.items() if their in words}
    return GPTConfig(**family.fixed | ours)


def config_to_hub(config: GPTConfig) -> dict[str, Any]:
    """The content of a config.json, of the first family that can say all of `config`."""
    for kind, family in FAMILIES.items():
        words = {their: getattr(config, our) for their, our in family.pairs.items()}
        words |= {"model_type": kind} | family.needs
        no_matter = {word: getattr(config, word) for word in ("init", "dropout", "rope_base")}
        with suppress(ValueError):  # not even a config
            if replace(config_from_hub(words), **no_matter) == config:
                return words
    raise ValueError(
        f"none of {', '.join(FAMILIES)} is built like this config; "
        "GPTConfig.preset('gpt2') and GPTConfig.preset('llama-7b') show what they fix"
    )


def from_hub(tensors: dict[str, Tensor], config: GPTConfig) -> GPT:
    """A GPT with the weights of a GPT-2- or Llama-like checkpoint, in fp32, ready to read.

    Args:
        tensors: the checkpoint's tensors by name.
        config: its config, for instance from `config_from_hub`.

    Raises ValueError for a tensor that is unknown, missing, or of another shape.
    """
    family = FAMILIES[config_to_hub(config)["model_type"]]
    lines, ours = dict(family.lines(config.n_layer)), dict[str, Tensor]()
    for name, tensor in tensors.items():
        if BUFFERS.search("." + name):
            continue
        parts = lines.get(name) or lines.get(family.prefix + name)
        if parts is None:
            raise ValueError(f"no line of the table knows the tensor {name!r}; another design?")
        turned = tensor.T if name.endswith(family.transposed) else tensor
        ours |= zip(parts, turned.chunk(len(parts)), strict=True)
    if config.tie_embeddings and "token_embedding.weight" in ours:
        ours["head.weight"] = ours["token_embedding.weight"]
    model = GPT(config)
    try:
        model.load_state_dict(ours)
    except RuntimeError as error:
        raise ValueError(f"the weights do not fit the config: {error}") from error
    return model.eval()


def to_hub(model: GPT) -> dict[str, Tensor]:
    """Our weights under the family's names; a tied head is left out, as in their files."""
    family = FAMILIES[config_to_hub(model.config)["model_type"]]
    ours, theirs = model.state_dict(), dict[str, Tensor]()
    if model.config.tie_embeddings:
        del ours["head.weight"]
    for name, parts in family.lines(model.config.n_layer):
        if parts[0] in ours:
            joined = torch.cat([ours[part] for part in parts])
            turned = joined.T if name.endswith(family.transposed) else joined
            theirs[name] = turned.contiguous()
    return theirs


def load_pretrained(path_or_repo: str | Path) -> GPT:
    """A GPT from a folder with config.json and safetensors, or from the Hugging Face hub by name.

    Raises ValueError where there is no such folder or repository, or a file of it is missing.
    """
    folder = Path(path_or_repo)
    if not folder.is_dir():
        folder = _download(str(path_or_repo))
    words = json.loads(_found(folder / "config.json").read_text(encoding="utf-8"))
    index = folder / "model.safetensors.index.json"
    shards = json.loads(index.read_text(encoding="utf-8")) if index.is_file() else {}
    files = set(shards.get("weight_map", {"": "model.safetensors"}).values())
    tensors = {k: t for file in files for k, t in load_file(_found(folder / file)).items()}
    return from_hub(tensors, config_from_hub(words))


def _found(file: Path) -> Path:
    if not file.is_file():
        raise ValueError(f"{file} is missing; a folder needs config.json and *.safetensors")
    return file


def _download(repo: str) -> Path:
    try:
        from huggingface_hub import snapshot_download  # optional: only for loading by name

        return Path(snapshot_download(repo, allow_patterns=["config.json", "*.safetensors*"]))
    except ImportError as error:
        raise ValueError(
            f"{repo!r} is no folder here; to download by name, install the package huggingface_hub"
        ) from error
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{repo!r} is no folder here, and the hub did not give it; check the name and the "
            f"connection, or download it by hand and give the folder: {error}"
        ) from error
