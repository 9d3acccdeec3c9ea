/* gpt.js: the GPT of this book in plain JavaScript, for a page without a kernel.
 *
 *   x = embedding(ids) + position
 *   x = x + attention(norm(x));  x = x + mlp(norm(x))        N times
 *   logits = head(norm(x))
 *
 * A matrix is a flat Float32Array, row after row; its shape stands beside it. A weight has torch's
 * layout (outputs, inputs), its name and its bytes. Every config word of Python works.
 *
 *   const { tensors, metadata } = GptEdu.readSafetensors(bytes);
 *   const model = new GptEdu.GPT(JSON.parse(metadata.config), tensors);
 *   model.forward(ids)                    -> logits (T,V) at once
 *   await model.run(ids, { signal })      -> the same, but the page stays free; signal stops it
 *   await model.trace(ids, { signal })    -> { logits, attention, residual, named }
 *   const cache = new GptEdu.KVCache(model.config);  model.forward(newIds, { cache })
 *   GptEdu.untrained(config, seed)        -> the model before training, as Python's `untrained`
 *
 * A hook sees what each part hands on, and may change it in place (to knock out a head, say):
 *   hook(name, data, shape), in this order, for a block i
 *     "embedding" (T,C)   the stream before the first block
 *     "blocks.i.attention_norm" (T,C)          "blocks.i.attention.query|key|value" (H|K,T,D),
 *     normalised and rotated                   "blocks.i.attention.weights" (H,T,S)
 *     "blocks.i.attention.heads" (T,H*D)       "blocks.i.attention" (T,C)
 *     "blocks.i.mlp_norm" (T,C)                "blocks.i.mlp.hidden" (T,F)
 *     "blocks.i.mlp" (T,C)                     "blocks.i" (T,C)   the stream after the block
 *     "final_norm" (T,C)                       "head" (T,V)
 */
(function (GptEdu) {
  "use strict";

  /** @typedef {{shape: number[], data: Float32Array}} Tensor */
  /** @typedef {Record<string, any>} Config  the words of Python's GPTConfig */
  /** @typedef {(name: string, data: Float32Array, shape: number[]) => void} Hook */

  // Config ------------------------------------------------------------------------------------

  const DEFAULTS = {
    vocab_size: 65, context_length: 64, n_layer: 4, n_head: 4, d_model: 128, dropout: 0,
    bias: true, tie_embeddings: false, position: "learned", rope_base: 10000, norm: "layernorm",
    norm_eps: 1e-5, norm_position: "pre", mlp: "gelu", qk_norm: false, window: null, init: "gpt2",
  };
  const CHOICES = {
    position: ["learned", "sinusoidal", "rope", "none"],
    norm: ["layernorm", "rmsnorm"],
    norm_position: ["pre", "post"],
    mlp: ["relu", "gelu", "relu2", "swiglu", "geglu"],
    init: ["gpt2", "zero", "torch"],
  };
  const GATED = ["swiglu", "geglu"];

  /** Every word with its value; those left out or null follow the others, and sizes that no model can
   * have are refused, in the words of Python.
   * @param {Config} words @returns {Config} */
  function gptConfig(words) {
    const config = { ...DEFAULTS, ...words };
    for (const [word, known] of Object.entries(CHOICES)) {
      if (!known.includes(config[word])) {
        throw new Error(`${word}=${config[word]} is not known; choose one of ${known.join(", ")}`);
      }
    }
    const whole = (...names) => {
      for (const name of names) {
        const fine = Number.isInteger(config[name]) && config[name] >= 1;
        refuseUnless(fine, `${name}=${config[name]} must be a whole number of at least 1`);
      }
    };
    whole("vocab_size", "context_length", "n_layer", "n_head", "d_model");
    const { d_model, n_head } = config;
    refuseUnless(d_model % n_head === 0 || config.head_dim, `d_model=${d_model} cannot be cut into ` +
      `n_head=${n_head} equal heads; choose a multiple, or set head_dim`);
    config.n_kv_head ??= n_head;
    config.head_dim ??= d_model / n_head;
    config.d_ff ??= 4 * d_model;
    config.qkv_bias ??= config.bias;
    config.norm_bias ??= config.bias;
    whole("n_kv_head", "head_dim", "d_ff");
    refuseUnless(n_head % config.n_kv_head === 0, `n_kv_head=${config.n_kv_head} does not divide n_head=${n_head}`);
    refuseUnless(config.position !== "rope" || config.head_dim % 2 === 0,
      `rotary positions turn pairs of numbers, but head_dim=${config.head_dim} is odd`);
    return config;
  }

  function refuseUnless(fine, reason) {
    if (!fine) throw new Error(reason);
  }

  /** The name and shape of every tensor that a config asks for.
   * @param {Config} config @returns {Map<string, number[]>} */
  function tensorShapes(config) {
    const c = gptConfig(config);
    const C = c.d_model, F = c.d_ff, H = c.n_head * c.head_dim, K = c.n_kv_head * c.head_dim;
    /** @type {Map<string, number[]>} */
    const shapes = new Map();
    const linear = (name, nOut, nIn, bias) => {
      shapes.set(`${name}.weight`, [nOut, nIn]);
      if (bias) shapes.set(`${name}.bias`, [nOut]);
    };
    const norm = (name, width = C, bias = c.norm === "layernorm" && c.norm_bias) => {
      shapes.set(`${name}.weight`, [width]);
      if (bias) shapes.set(`${name}.bias`, [width]);
    };
    linear("token_embedding", c.vocab_size, C, false);
    if (c.position === "learned") linear("position_embedding", c.context_length, C, false);
    for (let i = 0; i < c.n_layer; i++) {
      const block = `blocks.${i}`;
      norm(`${block}.attention_norm`);
      linear(`${block}.attention.query`, H, C, c.qkv_bias);
      linear(`${block}.attention.key`, K, C, c.qkv_bias);
      linear(`${block}.attention.value`, K, C, c.qkv_bias);
      linear(`${block}.attention.output`, C, H, c.bias);
      if (c.qk_norm) norm(`${block}.attention.query_norm`, c.head_dim, false);
      if (c.qk_norm) norm(`${block}.attention.key_norm`, c.head_dim, false);
      norm(`${block}.mlp_norm`);
      if (GATED.includes(c.mlp)) linear(`${block}.mlp.gate`, F, C, c.bias);
      linear(`${block}.mlp.up`, F, C, c.bias);
      linear(`${block}.mlp.down`, C, F, c.bias);
    }
    if (c.norm_position === "pre") norm("final_norm");
    if (!c.tie_embeddings) linear("head", c.vocab_size, C, c.bias);
    return shapes;
  }

  // Weights -----------------------------------------------------------------------------------

  /** A 16-bit float (5 bits of exponent, 10 of fraction) as a number. */
  function fromHalf(bits) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 0) return sign * fraction * 2 ** -24;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }

  /** How to read the bytes of each type; a copy, because a file need not align its tensors.
   * @type {Record<string, (bytes: ArrayBuffer) => Float32Array>} */
  const READERS = {
    F32: (bytes) => new Float32Array(bytes),
    F16: (bytes) => Float32Array.from(new Uint16Array(bytes), fromHalf),
    BF16: (bytes) => {
      const words = Uint32Array.from(new Uint16Array(bytes), (bits) => bits << 16);
      return new Float32Array(words.buffer); // bf16 is the upper half of an fp32
    },
  };

  /** The tensors and the metadata of a safetensors file.
   * @param {Uint8Array|DataView|ArrayBuffer} file
   * @returns {{tensors: Map<string, Tensor>, metadata: Record<string, string>}} */
  function readSafetensors(file) {
    const view = file instanceof ArrayBuffer ? new DataView(file) : file;
    const buffer = /** @type {ArrayBuffer} */ (view.buffer);
    const bytes = (from, to) => buffer.slice(view.byteOffset + from, view.byteOffset + to);
    const length = view.byteLength < 8 ? NaN : Number(new DataView(bytes(0, 8)).getBigUint64(0, true));
    if (!(8 + length <= view.byteLength)) {
      throw new Error(`no whole safetensors file: ${view.byteLength} bytes are too few`);
    }
    const header = JSON.parse(new TextDecoder().decode(bytes(8, 8 + length)));
    /** @type {Map<string, Tensor>} */
    const tensors = new Map();
    for (const [name, entry] of Object.entries(header)) {
      if (name === "__metadata__") continue;
      const { dtype, shape, data_offsets: [from, to] } = entry;
      if (!READERS[dtype]) throw new Error(`${name} is ${dtype}; this reads F32, F16 and BF16`);
      if (8 + length + to > view.byteLength) throw new Error(`the file ends before ${name} does`);
      tensors.set(name, { shape, data: READERS[dtype](bytes(8 + length + from, 8 + length + to)) });
    }
    return { tensors, metadata: header.__metadata__ ?? {} };
  }

  // Numbers -----------------------------------------------------------------------------------

  const sums = new Float64Array(16);

  /** out[t, o] = x[t] . weight[o] + bias[o], for the rows t from `from` to `to`. Four rows and four
   * outputs at a time: each number that is fetched is used four times. This is where the time goes.
   * @param {Float32Array} x @param {Float32Array} weight @param {Float32Array|undefined} bias
   * @param {Float32Array} out */
  function product(x, weight, bias, out, nIn, nOut, from, to) {
    const whole = to - ((to - from) % 4);
    for (let t = whole; t < to; t++) productRow(x, weight, bias, out, nIn, nOut, t);
    for (let t = from; t < whole; t += 4) {
      const x0 = t * nIn, x1 = x0 + nIn, x2 = x1 + nIn, x3 = x2 + nIn;
      for (let o = 0; o < nOut; o += 4) {
        const last = nOut - 1; // where nOut is no multiple of 4, the last output is computed again
        const w0 = o * nIn, w1 = Math.min(o + 1, last) * nIn;
        const w2 = Math.min(o + 2, last) * nIn, w3 = Math.min(o + 3, last) * nIn;
        let s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
        let s20 = 0, s21 = 0, s22 = 0, s23 = 0, s30 = 0, s31 = 0, s32 = 0, s33 = 0;
        for (let i = 0; i < nIn; i++) {
          const a = weight[w0 + i], b = weight[w1 + i], c = weight[w2 + i], d = weight[w3 + i];
          let y = x[x0 + i];
          s00 += y * a; s01 += y * b; s02 += y * c; s03 += y * d;
          y = x[x1 + i];
          s10 += y * a; s11 += y * b; s12 += y * c; s13 += y * d;
          y = x[x2 + i];
          s20 += y * a; s21 += y * b; s22 += y * c; s23 += y * d;
          y = x[x3 + i];
          s30 += y * a; s31 += y * b; s32 += y * c; s33 += y * d;
        }
        sums[0] = s00; sums[1] = s01; sums[2] = s02; sums[3] = s03;
        sums[4] = s10; sums[5] = s11; sums[6] = s12; sums[7] = s13;
        sums[8] = s20; sums[9] = s21; sums[10] = s22; sums[11] = s23;
        sums[12] = s30; sums[13] = s31; sums[14] = s32; sums[15] = s33;
        const outputs = Math.min(4, nOut - o);
        for (let r = 0; r < 4; r++) {
          for (let j = 0; j < outputs; j++) {
            out[(t + r) * nOut + o + j] = sums[4 * r + j] + (bias ? bias[o + j] : 0);
          }
        }
      }
    }
  }

  /** One row of the product, with four running sums that need not wait for each other. */
  function productRow(x, weight, bias, out, nIn, nOut, t) {
    const at = t * nIn, whole = nIn - (nIn % 4);
    for (let o = 0; o < nOut; o++) {
      const w = o * nIn;
      let a = 0, b = 0, c = 0, d = 0;
      for (let i = 0; i < whole; i += 4) {
        a += x[at + i] * weight[w + i];
        b += x[at + i + 1] * weight[w + i + 1];
        c += x[at + i + 2] * weight[w + i + 2];
        d += x[at + i + 3] * weight[w + i + 3];
      }
      for (let i = whole; i < nIn; i++) a += x[at + i] * weight[w + i];
      out[t * nOut + o] = a + b + c + d + (bias ? bias[o] : 0);
    }
  }

  /** Each row of length `width` with mean 0 (LayerNorm only) and mean square 1, times the gain. */
  function normalise(x, width, gain, bias, centre, eps) {
    const out = new Float32Array(x.length);
    for (let at = 0; at < x.length; at += width) {
      let mean = 0, square = 0;
      if (centre) for (let i = 0; i < width; i++) mean += x[at + i] / width;
      for (let i = 0; i < width; i++) square += (x[at + i] - mean) ** 2 / width;
      const factor = 1 / Math.sqrt(square + eps);
      for (let i = 0; i < width; i++) {
        out[at + i] = (x[at + i] - mean) * factor * gain[i] + (bias ? bias[i] : 0);
      }
    }
    return out;
  }

  const gelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));

  /** @type {Record<string, (x: number) => number>} */
  const ACTIVATIONS = {
    relu: (x) => Math.max(x, 0),
    gelu,
    relu2: (x) => Math.max(x, 0) ** 2,
    swiglu: (x) => x / (1 + Math.exp(-x)),
    geglu: gelu,
  };

  const f32 = Math.fround; // torch computes these tables in fp32, and far positions show it

  /** The sinusoid of one position: sin and cos of t / 10000^(2i/C), side by side. */
  function sinusoid(position, width) {
    return Float32Array.from({ length: width }, (_, i) => {
      const rate = f32(10000 ** f32(-(i - (i % 2)) / width));
      return i % 2 ? Math.cos(f32(position * rate)) : Math.sin(f32(position * rate));
    });
  }

  /** Turn the pairs (i, i + D/2) of each head's vectors by their position's angle, in place.
   * @param {Float32Array} x  (heads, T, D) */
  function rotate(x, T, D, start, base) {
    const half = D / 2;
    for (let t = 0; t < T; t++) {
      for (let i = 0; i < half; i++) {
        const angle = f32((start + t) * f32(base ** f32((-2 * i) / D)));
        const cos = Math.cos(angle), sin = Math.sin(angle);
        for (let at = t * D + i; at < x.length; at += T * D) {
          const a = x[at], b = x[at + half];
          x[at] = a * cos - b * sin;
          x[at + half] = a * sin + b * cos;
        }
      }
    }
  }

  /** (T, H*D) -> (H, T, D); with `back` the other way. */
  function splitHeads(x, H, T, D, back = false) {
    const out = new Float32Array(x.length);
    for (let h = 0; h < H; h++) {
      for (let t = 0; t < T; t++) {
        const joined = t * H * D + h * D, split = (h * T + t) * D;
        const from = back ? split : joined;
        out.set(x.subarray(from, from + D), back ? joined : split);
      }
    }
    return out;
  }

  /** One head's weights: softmax(q . k / sqrt(D)) over the keys that a query may see.
   * @param {Float32Array} q (T,D)  @param {Float32Array} k (S,D)  @param {Float32Array} out (T,S) */
  function headWeights(q, k, out, T, S, D, window) {
    const scale = D ** -0.5;
    for (let t = 0; t < T; t++) {
      const last = S - T + t, first = window ? Math.max(0, last - window + 1) : 0;
      let highest = -Infinity, total = 0;
      for (let s = first; s <= last; s++) {
        let score = 0;
        for (let d = 0; d < D; d++) score += q[t * D + d] * k[s * D + d];
        out[t * S + s] = score * scale;
        if (out[t * S + s] > highest) highest = out[t * S + s];
      }
      for (let s = first; s <= last; s++) {
        out[t * S + s] = Math.exp(out[t * S + s] - highest);
        total += out[t * S + s];
      }
      for (let s = first; s <= last; s++) out[t * S + s] /= total;
    }
  }

  /** One head's mixture of values: weights (T,S) times v (S,D) -> out (T,D). */
  function mixValues(weights, v, out, T, S, D) {
    for (let t = 0; t < T; t++) {
      for (let s = 0; s < S; s++) {
        const weight = weights[t * S + s];
        if (weight === 0) continue;
        for (let d = 0; d < D; d++) out[t * D + d] += weight * v[s * D + d];
      }
    }
  }

  // The model ---------------------------------------------------------------------------------

  /** Keys and values of each layer, (K, context, D), of which `length` positions are filled. */
  class KVCache {
    /** @param {Config} config */
    constructor(config) {
      const { n_layer, n_kv_head, head_dim, context_length } = (this.config = gptConfig(config));
      const room = () => new Float32Array(n_kv_head * context_length * head_dim);
      this.layers = Array.from({ length: n_layer }, () => ({ key: room(), value: room() }));
      this.length = 0;
    }

    reset() {
      this.length = 0;
    }
  }

  const PAUSE_AFTER = 8; // ms of work between two breaths of the page

  /** Let the page answer the reader. A message comes sooner than a timeout, which waits 4 ms. */
  const breathe = () =>
    new Promise((resolve) => {
      const channel = new MessageChannel();
      channel.port1.onmessage = () => (channel.port1.close(), resolve(undefined));
      channel.port2.postMessage(null);
    });

  class GPT {
    /** @param {Config} config @param {Map<string, Tensor>} tensors */
    constructor(config, tensors) {
      this.config = gptConfig(config);
      this.tensors = tensors;
      for (const [name, shape] of tensorShapes(this.config)) {
        const found = tensors.get(name)?.shape;
        if (String(found) !== String(shape)) {
          const what = found ? `has shape ${found}` : "is missing";
          throw new Error(`the weights do not fit the config: ${name} ${what}, not ${shape}`);
        }
      }
    }

    /** Logits (T,V) of every position, at once.
     * @param {ArrayLike<number>} ids
     * @param {{cache?: KVCache, hook?: Hook}} [options] @returns {Float32Array} */
    forward(ids, options) {
      const work = this.steps(ids, options);
      for (;;) {
        const { done, value } = work.next();
        if (done) return value;
      }
    }

    /** The same, but the page stays free. Throws an AbortError once `signal` is aborted.
     * @param {ArrayLike<number>} ids
     * @param {{cache?: KVCache, hook?: Hook, signal?: AbortSignal}} [options]
     * @returns {Promise<Float32Array>} */
    async run(ids, options = {}) {
      const work = this.steps(ids, options);
      let resumed = performance.now();
      for (;;) {
        options.signal?.throwIfAborted();
        const { done, value } = work.next();
        if (done) return value;
        if (performance.now() - resumed < PAUSE_AFTER) continue;
        await breathe();
        resumed = performance.now();
      }
    }

    /** Run, and keep all that a hook can see. `attention[i]` is (H,T,S); `residual[i]` is (T,C), the
     * stream before block i; residual[n_layer] is the stream after the last block.
     * @param {ArrayLike<number>} ids
     * @param {{hook?: Hook, signal?: AbortSignal}} [options] */
    async trace(ids, { hook, signal } = {}) {
      /** @type {Map<string, Tensor>} */
      const named = new Map();
      const keep = (name, data, shape) => {
        hook?.(name, data, shape);
        named.set(name, { shape, data: data.slice() });
      };
      const logits = await this.run(ids, { hook: keep, signal });
      const layers = [...Array(this.config.n_layer).keys()];
      const read = (name) => /** @type {Tensor} */ (named.get(name)).data;
      return {
        logits,
        attention: layers.map((i) => read(`blocks.${i}.attention.weights`)),
        residual: [read("embedding"), ...layers.map((i) => read(`blocks.${i}`))],
        named,
      };
    }

    /** The forward pass. It pauses often, so that `run` can stop to let the page breathe.
     * @param {ArrayLike<number>} ids
     * @param {{cache?: KVCache, hook?: Hook}} [options]
     * @returns {Generator<undefined, Float32Array, undefined>} */
    *steps(ids, { cache, hook = () => {} } = {}) {
      const { d_model: C, vocab_size: V, n_layer, norm_position } = this.config;
      const T = ids.length, start = cache?.length ?? 0;
      this.checkIds(ids, start);
      let x = this.embed(ids, start);
      hook("embedding", x, [T, C]);
      for (let i = 0; i < n_layer; i++) x = yield* this.block(i, x, T, cache, hook);
      if (norm_position === "pre") x = this.norm("final_norm", x, C);
      hook("final_norm", x, [T, C]);
      const logits = yield* this.linear("head", x, T);
      hook("head", logits, [T, V]);
      if (cache) cache.length += T; // last, so that a run that was stopped leaves the cache as it was
      return logits;
    }

    *block(i, x, T, cache, hook) {
      const { d_model: C, norm_position } = this.config;
      const name = `blocks.${i}`, post = norm_position === "post";
      const add = (a, b) => a.map((value, at) => value + b[at]);
      const norm = (part, y) => {
        const out = this.norm(`${name}.${part}`, y, C);
        hook(`${name}.${part}`, out, [T, C]);
        return out;
      };
      if (!post) {
        const found = yield* this.attention(i, norm("attention_norm", x), T, cache, hook);
        x = add(x, found);
        x = add(x, yield* this.mlp(i, norm("mlp_norm", x), T, hook));
      } else {
        x = norm("attention_norm", add(x, yield* this.attention(i, x, T, cache, hook)));
        x = norm("mlp_norm", add(x, yield* this.mlp(i, x, T, hook)));
      }
      hook(name, x, [T, C]);
      return x;
    }

    *attention(i, x, T, cache, hook) {
      const { n_head: H, n_kv_head: K, head_dim: D, d_model: C, window } = this.config;
      const name = `blocks.${i}.attention`, start = cache?.length ?? 0, S = start + T;
      const [q, newK, newV] = yield* this.heads(name, x, T, start, hook);
      const keys = this.remember(cache?.layers[i].key, newK, T, start);
      const values = this.remember(cache?.layers[i].value, newV, T, start);
      const weights = new Float32Array(H * T * S), mixed = new Float32Array(H * T * D);
      const part = (array, h, size, used = size) => array.subarray(h * size, h * size + used);
      const room = keys.length / K; // how much of a key head's array belongs to one head
      const shared = (h) => Math.floor((h * K) / H); // H / K query heads share a key and value head
      for (let h = 0; h < H; h++) {
        const k = part(keys, shared(h), room, S * D);
        headWeights(part(q, h, T * D), k, part(weights, h, T * S), T, S, D, window);
        yield;
      }
      hook(`${name}.weights`, weights, [H, T, S]);
      for (let h = 0; h < H; h++) {
        const v = part(values, shared(h), room, S * D);
        mixValues(part(weights, h, T * S), v, part(mixed, h, T * D), T, S, D);
        yield;
      }
      const joined = splitHeads(mixed, H, T, D, true);
      hook(`${name}.heads`, joined, [T, H * D]);
      const out = yield* this.linear(`${name}.output`, joined, T);
      hook(name, out, [T, C]);
      return out;
    }

    /** Queries, keys and values, split into heads, normalised and rotated where the config says so. */
    *heads(name, x, T, start, hook) {
      const { n_head, n_kv_head, head_dim: D, qk_norm, position, rope_base } = this.config;
      const parts = [["query", n_head], ["key", n_kv_head], ["value", n_kv_head]];
      const out = [];
      for (const [part, count] of parts) {
        let y = splitHeads(yield* this.linear(`${name}.${part}`, x, T), count, T, D);
        if (part !== "value") {
          const gain = this.tensors.get(`${name}.${part}_norm.weight`);
          if (qk_norm) y = normalise(y, D, gain.data, undefined, false, this.config.norm_eps);
          if (position === "rope") rotate(y, T, D, start, rope_base);
        }
        hook(`${name}.${part}`, y, [count, T, D]);
        out.push(y);
      }
      return out;
    }

    /** Write T new positions into a layer's cache; without a cache they are all there is. */
    remember(room, fresh, T, start) {
      if (!room) return fresh;
      const { n_kv_head, head_dim: D, context_length } = this.config;
      for (let h = 0; h < n_kv_head; h++) {
        room.set(fresh.subarray(h * T * D, (h + 1) * T * D), (h * context_length + start) * D);
      }
      return room;
    }

    *mlp(i, x, T, hook) {
      const { d_model: C, d_ff: F, mlp } = this.config;
      const name = `blocks.${i}.mlp`, bend = ACTIVATIONS[mlp], gated = GATED.includes(mlp);
      let hidden = yield* this.linear(`${name}.up`, x, T);
      if (gated) {
        const gate = yield* this.linear(`${name}.gate`, x, T);
        hidden = hidden.map((value, at) => value * bend(gate[at]));
      } else hidden = hidden.map(bend);
      hook(`${name}.hidden`, hidden, [T, F]);
      const out = yield* this.linear(`${name}.down`, hidden, T);
      hook(name, out, [T, C]);
      return out;
    }

    /** @returns {Generator<undefined, Float32Array, undefined>} */
    *linear(name, x, T) {
      const tied = name === "head" && this.config.tie_embeddings;
      const { shape: [nOut, nIn], data } = this.tensors.get(tied ? "token_embedding.weight" : `${name}.weight`);
      const bias = this.tensors.get(`${name}.bias`)?.data;
      const out = new Float32Array(T * nOut);
      const rows = Math.max(4, 4 * Math.floor(2e6 / (nIn * nOut))); // some 2 ms of work
      for (let t = 0; t < T; t += rows) {
        product(x, data, bias, out, nIn, nOut, t, Math.min(T, t + rows));
        yield;
      }
      return out;
    }

    norm(name, x, width) {
      const gain = this.tensors.get(`${name}.weight`).data;
      const bias = this.tensors.get(`${name}.bias`)?.data;
      return normalise(x, width, gain, bias, this.config.norm === "layernorm", this.config.norm_eps);
    }

    embed(ids, start) {
      const { d_model: C, position } = this.config;
      const out = new Float32Array(ids.length * C);
      const rows = this.tensors.get("token_embedding.weight").data;
      const learned = this.tensors.get("position_embedding.weight")?.data;
      for (let t = 0; t < ids.length; t++) {
        const place = start + t;
        out.set(rows.subarray(ids[t] * C, (ids[t] + 1) * C), t * C);
        let where = null;
        if (position === "learned") where = learned.subarray(place * C, (place + 1) * C);
        if (position === "sinusoidal") where = sinusoid(place, C);
        if (where) for (let i = 0; i < C; i++) out[t * C + i] += where[i];
      }
      return out;
    }

    checkIds(ids, start) {
      const { context_length, vocab_size } = this.config, T = ids.length;
      if (T < 1 || start + T > context_length) {
        throw new Error(
          `${T} new tokens after ${start} do not fit: the model sees between 1 and ` +
            `context_length=${context_length} positions`,
        );
      }
      const wrong = Array.from(ids).find((id) => !(Number.isInteger(id) && id >= 0 && id < vocab_size));
      if (wrong !== undefined) {
        throw new Error(`id ${wrong} is not in the vocabulary, whose ids are 0 to ${vocab_size - 1}`);
      }
    }
  }

  // Before training ---------------------------------------------------------------------------

  /** Even numbers from 0 up to 1, the same in Python and here: mulberry32 (T. Ettinger, 2017).
   * @param {number} seed @returns {() => number} */
  function random(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let z = Math.imul(state ^ (state >>> 15), state | 1);
      z = (z + Math.imul(z ^ (z >>> 7), z | 61)) ^ z;
      return ((z ^ (z >>> 14)) >>> 0) / 2 ** 32;
    };
  }

  /** A normal number (Box and Muller 1958), from two even ones. */
  const normal = (next) => {
    const radius = Math.sqrt(-2 * Math.log(1 - next()));
    return radius * Math.cos(2 * Math.PI * next());
  };

  /** How one tensor starts, as Python's `initialise`: a function of the even numbers' source. */
  function start(name, shape, c) {
    const residual = /(attention\.output|mlp\.down)\.weight$/.test(name);
    const embedding = name.endsWith("_embedding.weight");
    const gaussian = (std) => (next) => std * normal(next);
    const constant = (value) => () => value;
    if (/norm\.(weight|bias)$/.test(name)) return constant(name.endsWith("weight") ? 1 : 0);
    if (c.init === "torch") {
      if (embedding) return gaussian(1);
      const inputs = /mlp\.down/.test(name) ? c.d_ff : /attention\.output/.test(name) ? c.n_head * c.head_dim : c.d_model;
      return (next) => (2 * next() - 1) * inputs ** -0.5;
    }
    if (shape.length < 2) return constant(0);
    if (c.init === "gpt2") return gaussian(residual ? 0.02 / Math.sqrt(2 * c.n_layer) : 0.02);
    if (residual || name === "head.weight") return constant(0);
    if (name === "token_embedding.weight") return gaussian(c.tie_embeddings ? 0.02 : 1);
    return gaussian(embedding ? 0.02 : 0.5 * shape[1] ** -0.5);
  }

  /** The model before training, from a seed: tensor by tensor, in the order of their names.
   * @param {Config} words @returns {GPT} */
  function untrained(words, seed = 1337) {
    const config = gptConfig(words), next = random(seed), shapes = tensorShapes(config);
    /** @type {Map<string, Tensor>} */
    const tensors = new Map();
    for (const name of [...shapes.keys()].sort()) {
      const shape = shapes.get(name), draw = start(name, shape, config);
      const size = shape.reduce((a, b) => a * b, 1);
      tensors.set(name, { shape, data: Float32Array.from({ length: size }, () => draw(next)) });
    }
    return new GPT(config, tensors);
  }

  Object.assign(GptEdu, { gptConfig, tensorShapes, readSafetensors, GPT, KVCache, random, untrained });
})((globalThis.GptEdu ||= {}));
