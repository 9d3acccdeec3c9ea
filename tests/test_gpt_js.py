"""The page's model and tokenizers, in a real browser, against PyTorch and Python.

The reference is `GPT` itself with the explicit kernel, whose own reference is torch; the inner
parts are read off it with hooks. Weights travel as safetensors bytes, as they do in the book.
"""

import base64
import json
import random
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save as to_bytes

from gptedu.config import GPTConfig
from gptedu.model import GPT
from gptedu.seeds import untrained
from gptedu.tokenizer import BPETokenizer, CharTokenizer, split_words
from gptedu.widgets.host import STATIC, pack
from tests import browser

pytestmark = pytest.mark.browser

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no biases": {"bias": False},
    "qkv without bias": {"qkv_bias": False},
    "qkv bias only": {"bias": False, "qkv_bias": True},
    "norm bias only": {"bias": False, "norm_bias": True},
    "tied": {"tie_embeddings": True},
    "sinusoidal": {"position": "sinusoidal"},
    "rope": {"position": "rope"},
    "rope with another base": {"position": "rope", "rope_base": 500.0},
    "no positions": {"position": "none"},
    "rmsnorm": {"norm": "rmsnorm"},
    "post-norm": {"norm_position": "post"},
    "post-norm with rmsnorm": {"norm_position": "post", "norm": "rmsnorm"},
    "relu": {"mlp": "relu"},
    "relu2": {"mlp": "relu2"},
    "swiglu": {"mlp": "swiglu"},
    "geglu": {"mlp": "geglu", "bias": False},
    "qk_norm": {"qk_norm": True, "norm_eps": 1e-2},
    "gqa": {"n_head": 4, "n_kv_head": 2},
    "mqa with rope": {"n_head": 4, "n_kv_head": 1, "position": "rope", "qk_norm": True},
    "wide heads": {"head_dim": 24},
    "narrow mlp": {"d_ff": 21},
    "window": {"window": 3},
    "window with gqa and rope": {"window": 5, "n_head": 4, "n_kv_head": 2, "position": "rope"},
    "odd sizes": {"d_model": 18, "n_head": 3, "vocab_size": 7, "context_length": 11},
    "recipe": {
        "position": "rope",
        "norm": "rmsnorm",
        "mlp": "relu2",
        "qk_norm": True,
        "bias": False,
    },
}

RUN = """async ({ bytes, ids, chunks }) => {
  const list = (data) => Array.from(data);
  const { model } = GptEdu.openModel(Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0)));
  const trace = await model.trace(ids);
  const cache = new GptEdu.KVCache(model.config), cached = [];
  for (const chunk of chunks) cached.push(...model.forward(chunk, { cache }));
  return {
    logits: list(trace.logits), once: list(model.forward(ids)), cached, length: cache.length,
    attention: trace.attention.map(list), residual: trace.residual.map(list),
    named: Object.fromEntries([...trace.named].map(([k, v]) => [k, [v.shape, list(v.data)]])),
  };
}"""


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """An empty page with the three library files."""
    with browser.chromium() as chromium, browser.visit(chromium) as page:
        page.goto("about:blank")
        for file in ("gpt.js", "tokenizer.js", "core.js"):
            page.add_script_tag(path=STATIC / "lib" / file)
        yield page
        assert page.faults == []


def random_model(**words: Any) -> GPT:
    """Every number drawn, gains and biases too, and large enough to matter."""
    sizes = {"vocab_size": 13, "context_length": 12, "n_layer": 2, "n_head": 2, "d_model": 16}
    model = GPT(GPTConfig(**sizes | words)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3 if parameter.ndim > 1 else 0.5)
    return model


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def packed(model: GPT) -> str:
    """The model with a tokenizer that has as many symbols as it needs."""
    symbols = "".join(chr(0x100 + i) for i in range(model.config.vocab_size))
    return encoded(pack(model, CharTokenizer(symbols)))


def inside(model: GPT, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """What every part hands on, read with hooks and named as the page names it."""
    seen: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, given, out: seen.__setitem__(name, out[0])

    for i, block in enumerate(model.blocks):
        name = f"blocks.{i}"
        for part in ("attention_norm", "attention", "mlp_norm", "mlp"):
            getattr(block, part).register_forward_hook(keep(f"{name}.{part}"))
        block.register_forward_hook(keep(name))
        block.attention.kernel = "explicit"

        def explicit(module: Any, given: Any, out: Any, name: str = name) -> None:
            seen[f"{name}.attention.query"] = given[0][0]
            seen[f"{name}.attention.weights"] = out[1][0]

        block.attention.explicit.register_forward_hook(explicit)
        block.attention.output.register_forward_pre_hook(
            lambda module, given, name=name: seen.__setitem__(
                f"{name}.attention.heads", given[0][0]
            )
        )
    model.dropout.register_forward_hook(keep("embedding"))
    model.final_norm.register_forward_hook(keep("final_norm"))
    model.head.register_forward_hook(keep("head"))
    with torch.no_grad():
        model(ids)
    return seen


def largest_difference(found: list[float], wanted: torch.Tensor) -> float:
    return float((torch.tensor(found) - wanted.flatten()).abs().max())


@pytest.mark.parametrize("words", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_agrees_with_torch(page: Any, words: dict[str, Any]) -> None:
    model = random_model(**words)
    T = model.config.context_length - 1
    ids = torch.randint(model.config.vocab_size, (1, T))
    wanted = inside(model, ids)
    row = ids[0].tolist()
    chunks = [row[:4], row[4:5], row[5:]]
    found = page.evaluate(RUN, {"bytes": packed(model), "ids": row, "chunks": chunks})

    assert largest_difference(found["logits"], wanted["head"]) < 1e-4
    assert found["once"] == found["logits"]
    assert largest_difference(found["cached"], wanted["head"]) < 1e-4
    assert found["length"] == T
    for i in range(model.config.n_layer):
        weights = wanted[f"blocks.{i}.attention.weights"]
        assert largest_difference(found["attention"][i], weights) < 1e-5
        assert largest_difference(found["residual"][i + 1], wanted[f"blocks.{i}"]) < 1e-4
    assert largest_difference(found["residual"][0], wanted["embedding"]) < 1e-5
    missing = {name for name in wanted if name not in found["named"]}
    assert not missing
    for name, tensor in wanted.items():
        shape, data = found["named"][name]
        assert shape == list(tensor.shape), name
        assert largest_difference(data, tensor) < 1e-4, name


def test_far_positions_agree_with_torch(page: Any) -> None:
    """Angles are computed in fp32 there and here, or a thousand positions on they differ."""
    for position in ("rope", "sinusoidal"):
        model = random_model(position=position, context_length=1200, n_layer=1, head_dim=8)
        ids = torch.randint(13, (1, 1200))
        script = """({ bytes, ids }) => {
          const { model } = GptEdu.openModel(Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0)));
          return Array.from(model.forward(ids));
        }"""
        found = page.evaluate(script, {"bytes": packed(model), "ids": ids[0].tolist()})
        with torch.no_grad():
            assert largest_difference(found, model(ids)) < 1e-4


def test_16_bit_weights_are_read_exactly(page: Any) -> None:
    """All 65,536 patterns of each kind, by torch's own conversion; and bytes at an odd place."""
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    tensors = {
        "half": patterns.clone().view(torch.float16),
        "brain": patterns.view(torch.bfloat16),
        "single": torch.randn(5, 3),
    }
    script = """(bytes) => {
      const whole = Uint8Array.from(" " + atob(bytes), (c) => c.charCodeAt(0));
      const { tensors } = GptEdu.readSafetensors(new DataView(whole.buffer, 1));
      const bits = ([k, v]) => [k, [v.shape, Array.from(new Int32Array(v.data.buffer))]];
      return Object.fromEntries([...tensors].map(bits));
    }"""
    found = page.evaluate(script, encoded(to_bytes(tensors)))
    for name, tensor in tensors.items():
        shape, bits = found[name]
        assert shape == list(tensor.shape)
        wanted, read = tensor.float().flatten(), torch.tensor(bits, dtype=torch.int32)
        nan = wanted.isnan()
        assert torch.equal(read[~nan], wanted.view(torch.int32)[~nan])
        assert read.view(torch.float32)[nan].isnan().all()


def test_damaged_and_foreign_weights_are_refused(page: Any) -> None:
    model = random_model()
    content = base64.b64decode(packed(model))
    reason = """(bytes) => {
      try { GptEdu.openModel(Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))); }
      catch (error) { return error.message; }
    }"""
    assert "ends before" in page.evaluate(reason, encoded(content[:-4]))
    assert "too few" in page.evaluate(reason, encoded(content[:100]))
    config = json.dumps(model.config.to_dict() | {"d_model": 32})
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    other = to_bytes(tensors, {"config": config, "tokenizer": "{}"})
    assert "token_embedding.weight has shape 13,16, not 13,32" in page.evaluate(
        reason, encoded(other)
    )


def test_wrong_ids_are_refused(page: Any) -> None:
    script = """({ bytes, ids }) => {
      const { model } = GptEdu.openModel(Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0)));
      try { model.forward(ids); } catch (error) { return error.message; }
    }"""
    for ids, words in (([], "0 new tokens"), ([1] * 13, "13 new tokens"), ([3, 13], "id 13")):
        assert words in page.evaluate(script, {"bytes": packed(random_model()), "ids": ids})


def test_a_hook_may_change_what_it_sees(page: Any) -> None:
    """Knocking out head 1 of block 0 is the same as zeros in the columns of W_O that read it."""
    model = random_model()
    script = """({ bytes, ids }) => {
      const { model } = GptEdu.openModel(Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0)));
      const hook = (name, data, [T, width]) => {
        if (name !== "blocks.0.attention.heads") return;
        for (let t = 0; t < T; t++) data.fill(0, t * width + width / 2, (t + 1) * width);
      };
      return Array.from(model.forward(ids, { hook }));
    }"""
    ids = torch.randint(13, (1, 9))
    found = page.evaluate(script, {"bytes": packed(model), "ids": ids[0].tolist()})
    with torch.no_grad():
        model.blocks[0].attention.output.weight[:, 8:] = 0
        assert largest_difference(found, model(ids)) < 1e-4


LARGE = "{ d_model: 256, n_layer: 4, n_head: 4, context_length: 256 }"


def test_long_work_leaves_the_page_free(page: Any) -> None:
    """Timers go on while a model runs, and none of them waits for as long as the whole run."""
    found = page.evaluate(
        f"""async () => {{
          const model = GptEdu.untrained({LARGE}), ids = Array(200).fill(1);
          model.forward(ids); // compiled by now
          let begin = performance.now();
          const logits = model.forward(ids);
          const atOnce = performance.now() - begin;
          let ticks = 0, longest = 0, last = performance.now();
          const timer = setInterval(() => {{
            ticks++;
            longest = Math.max(longest, performance.now() - last);
            last = performance.now();
          }}, 0);
          const same = (await model.run(ids)).every((x, i) => x === logits[i]);
          clearInterval(timer);
          return {{ same, ticks, longest, atOnce }};
        }}"""
    )
    assert found["same"]
    assert found["ticks"] >= 8
    assert found["longest"] < found["atOnce"] / 3


def test_a_newer_run_stops_an_older_one(page: Any) -> None:
    found = page.evaluate(
        f"""async () => {{
          const model = GptEdu.untrained({LARGE}), ids = Array(128).fill(1);
          const cache = new GptEdu.KVCache(model.config), controller = new AbortController();
          const run = model.run(ids, {{ cache, signal: controller.signal }});
          setTimeout(() => controller.abort(), 0);
          const name = await run.then(() => "finished", (error) => error.name);
          const again = model.forward([1, 2], {{ cache }}), fresh = model.forward([1, 2]);
          return {{ name, same: again.every((x, i) => x === fresh[i]) }};
        }}"""
    )
    assert found == {"name": "AbortError", "same": True}


def test_speed_of_a_model_of_a_million_parameters(page: Any, capsys: Any) -> None:
    """In CPU time of the page's thread, because others share the machine; the best of a few.

    The limits are twice the book's targets (50 ms and 4 ms), as a slower machine may run this.
    """
    config = GPTConfig.preset("shakespeare-mini", init="gpt2").to_dict()
    page.evaluate(
        """(config) => {
          const model = GptEdu.untrained(config), ids = Array.from({ length: 64 }, (_, i) => i);
          const cache = new GptEdu.KVCache(config);
          window.forward = () => model.forward(ids);
          window.token = () => {
            if (cache.length >= 120) cache.reset();
            for (let i = 0; i < 10; i++) model.forward([i], { cache });
          };
        }""",
        config,
    )
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def best(call: str, times: int) -> float:
        spent = []
        for _ in range(times):
            before, after = (_thread_time(session, page, code) for code in ("0", call))
            spent.append(1000 * (after - before))
        return min(spent)

    forward, token = best("window.forward()[0]", 12), best("window.token()", 24) / 10
    with capsys.disabled():
        print(f"\n64 tokens {forward:.1f} ms, one cached token {token:.2f} ms")
    assert 1 < forward < 100
    assert 0.1 < token < 8


def _thread_time(session: Any, page: Any, code: str) -> float:
    page.evaluate(code)
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(entry["value"] for entry in metrics if entry["name"] == "ThreadTime")


UNTRAINED: list[dict[str, Any]] = [
    {},
    {"init": "zero", "position": "rope", "norm": "rmsnorm", "qk_norm": True, "bias": False},
    {"init": "zero", "tie_embeddings": True, "norm_position": "post"},
    {"init": "torch", "head_dim": 12, "d_ff": 20},
    {"init": "torch", "mlp": "swiglu", "n_head": 4, "n_kv_head": 2, "bias": False},
]


@pytest.mark.parametrize("words", UNTRAINED)
def test_the_untrained_model_is_the_same_in_python_and_in_the_page(
    page: Any, words: dict[str, Any]
) -> None:
    sizes = {"vocab_size": 13, "context_length": 12, "n_layer": 2, "n_head": 2, "d_model": 16}
    config = GPTConfig(**sizes | words)
    script = """([config, seed]) => {
      const entry = ([name, { data }]) => [name, Array.from(data)];
      return Object.fromEntries([...GptEdu.untrained(config, seed).tensors].map(entry));
    }"""
    for seed in (1337, 2**32 - 3):
        found = page.evaluate(script, [config.to_dict(), seed])
        wanted = dict(untrained(config, seed).named_parameters())
        assert found.keys() == wanted.keys()
        for name, weight in wanted.items():
            assert largest_difference(found[name], weight.detach()) < 1e-6, name


def test_the_page_resolves_a_config_as_python_does(page: Any) -> None:
    for words in ({}, {"bias": False}, {"n_head": 8, "n_kv_head": 2}, {"mlp": "geglu", "d_ff": 3}):
        wanted = GPTConfig(**words).to_dict()
        assert page.evaluate("(words) => GptEdu.gptConfig(words)", words) == wanted
        shapes = page.evaluate("(words) => [...GptEdu.tensorShapes(words)]", words)
        model = GPT(GPTConfig(**words))
        assert dict(shapes) == {name: list(p.shape) for name, p in model.named_parameters()}


# Tokenizers ---------------------------------------------------------------------------------------


def random_text(length: int) -> str:
    """Signs from everywhere: letters, digits, all spaces, emoji, any plane; no half pair."""
    likely = "abc ABC 019 'll 's \n\t\r\x0b\x85\xa0\u2003\u3000\ufeff\u200b\u200dé中한ß½²🙂👩‍🔬́अ"
    signs = []
    while len(signs) < length:
        sign = random.choice(likely) if random.random() < 0.7 else chr(random.randrange(0x110000))
        if not "\ud800" <= sign <= "\udfff":
            signs.append(sign)
    return "".join(signs)


def test_words_are_split_as_in_python(page: Any) -> None:
    """Every sign of Unicode that Python's own database knows, between letters and spaces."""
    signs = [chr(i) for i in range(sys.maxunicode + 1)]
    known = [sign for sign in signs if unicodedata.category(sign) not in ("Cn", "Co", "Cs")]
    assert len(known) > 140_000
    between = "\ue000"  # for private use, so in none of the texts
    script = "([text, between]) => GptEdu.splitWords(text).join(between)"
    for i in range(0, len(known), 5000):
        text = "\n".join(f"a{sign} {sign}1{sign} {sign} " for sign in known[i : i + 5000])
        assert page.evaluate(script, [text, between]) == between.join(split_words(text))


def test_bpe_equals_python_on_any_text(page: Any) -> None:
    sample = (
        "the theme of the thin thing; wie wäre es? 中文中文 🙂🙂 can't we'll 1999 2024  \n\n" * 3
    )
    tokenizer = BPETokenizer.train(sample + random_text(2000), 300)
    texts = ["", " ", "\n", "the theme", "\ufeff\x85 x"] + [random_text(60) for _ in range(200)]
    script = """({ saved, texts }) => {
      const t = GptEdu.tokenizerFromDict(saved);
      return texts.map((text) => {
        const ids = t.encode(text), steps = t.merging(text);
        return { ids, text: t.decode(ids), pieces: ids.map((id) => t.piece(id)).length,
          last: steps[steps.length - 1].words.flat(), first: steps[0].words.flat(),
          joined: steps.reduce((n, step) => n + step.count, 0), size: t.vocabSize,
          ordered: steps.slice(1).every((s, i) => i === 0 || s.id > steps[i].id) };
      });
    }"""
    found = page.evaluate(script, {"saved": tokenizer.to_dict(), "texts": texts})
    for text, one in zip(texts, found, strict=True):
        ids = tokenizer.encode(text)
        assert one["ids"] == ids
        assert one["text"] == text
        assert one["last"] == ids
        assert len(one["first"]) == len(text.encode())
        assert one["joined"] == len(text.encode()) - len(ids)
        assert one["size"] == tokenizer.vocab_size


def test_broken_bytes_decode_as_in_python(page: Any) -> None:
    tokenizer = BPETokenizer.train("añb 中文 🙂" * 5, 20)
    rows = [[random.randrange(tokenizer.vocab_size) for _ in range(12)] for _ in range(200)]
    script = """({ saved, rows }) => {
      const t = GptEdu.tokenizerFromDict(saved);
      return rows.map((ids) => t.decode(ids));
    }"""
    found = page.evaluate(script, {"saved": tokenizer.to_dict(), "rows": rows})
    assert found == [tokenizer.decode(ids) for ids in rows]


def test_characters_equal_python(page: Any) -> None:
    text = random_text(500)
    tokenizer = CharTokenizer(text)
    script = """({ saved, text }) => {
      const t = GptEdu.tokenizerFromDict(JSON.parse(saved)), ids = t.encode(text);
      let error = null;
      try { t.encode("a\\uffffb"); } catch (e) { error = e.message; }
      return { ids, text: t.decode(ids), error, size: t.vocabSize, usable: t.usable("a\\uffffa") };
    }"""
    saved = json.dumps(tokenizer.to_dict())
    found = page.evaluate(script, {"saved": saved, "text": text})
    assert found["ids"] == tokenizer.encode(text)
    assert found["text"] == text
    assert found["size"] == tokenizer.vocab_size
    assert "U+FFFF" in found["error"]
    assert "index 1" in found["error"]
    assert found["usable"] == {"text": "aa", "dropped": ["\uffff"]}


def test_half_a_surrogate_pair_is_refused(page: Any) -> None:
    script = """() => {
      const t = new GptEdu.BPETokenizer([]);
      try { t.encode("a\\ud800"); } catch (error) { return [error.message, t.usable("a\\ud800")]; }
    }"""
    message, usable = page.evaluate(script)
    assert "U+D800" in message
    assert usable["text"] == "a"


def test_the_library_stays_small() -> None:
    """Lines that are neither blank nor comment, as in the book's budget."""
    lines = [
        line.strip()
        for file in (STATIC / "lib").glob("*.js")
        for line in Path(file).read_text(encoding="utf-8").splitlines()
    ]
    code = [line for line in lines if line and not line.startswith(("//", "/*", "*"))]
    assert len(code) <= 1400
