/* The parameter calculator: a config in, the exact ledger and the costs out, in whole numbers of any
 * size. What stands here twice (formulas, costs) the tests hold equal to Python's. */
(function (GptEdu) {
  "use strict";
  const { h, fixed, ramp, whole, percent, inBytes, inFlops, drawBar } = GptEdu;

  /** @typedef {Record<string, any>} Config */
  /** @typedef {{component: string, formula: string, copies: number, total: bigint}} Row */
  /** @typedef {{name: string, size: bigint, colour: string}} Part */

  const WORDS = ["vocab_size", "context_length", "n_layer", "n_head", "n_kv_head", "head_dim", "d_model",
    "d_ff", "dropout", "bias", "qkv_bias", "norm_bias", "tie_embeddings", "position", "norm",
    "norm_position", "mlp", "qk_norm"];
  const HIDDEN_TENSORS = { relu: 1n, gelu: 2n, relu2: 2n, swiglu: 4n, geglu: 4n };
  const gated = (config) => config.mlp === "swiglu" || config.mlp === "geglu";
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0n);

  // Arithmetic: pure, and all in BigInt ---------------------------------------------------------

  /** @param {Config} c @returns {Record<string, bigint>} */
  const letters = (c) => ({
    V: BigInt(c.vocab_size), T: BigInt(c.context_length), L: BigInt(c.n_layer), C: BigInt(c.d_model),
    H: BigInt(c.n_head), K: BigInt(c.n_kv_head), D: BigInt(c.head_dim), F: BigInt(c.d_ff),
  });

  /** The value of a sum of products: "C·F + F". */
  const evaluate = (formula, sizes) =>
    sum(formula.split(" + ").map((term) => term.split("·").reduce((n, factor) => n * (sizes[factor] ?? BigInt(factor)), 1n)));

  /** Every component there can be; one that this config lacks has the formula "".
   * @param {Config} c @returns {[string, string, boolean][]} name, formula, once for each layer */
  function formulas(c) {
    const norm = c.norm === "layernorm" && c.norm_bias ? "C + C" : "C";
    const linear = (inputs, outputs, bias) => `${inputs}·${outputs}${bias ? ` + ${outputs}` : ""}`;
    const only = (there, formula) => (there ? formula : "");
    return [
      ["token embedding", "V·C", false],
      ["position embedding", only(c.position === "learned", "T·C"), false],
      ["attention norm", norm, true],
      ["query", linear("C", "H·D", c.qkv_bias), true],
      ["key", linear("C", "K·D", c.qkv_bias), true],
      ["value", linear("C", "K·D", c.qkv_bias), true],
      ["query and key norm", only(c.qk_norm, "2·D"), true],
      ["attention output", linear("H·D", "C", c.bias), true],
      ["MLP norm", norm, true],
      ["MLP up", linear("C", "F", c.bias), true],
      ["MLP gate", only(gated(c), linear("C", "F", c.bias)), true],
      ["MLP down", linear("F", "C", c.bias), true],
      ["final norm", only(c.norm_position === "pre", norm), false],
      ["head", c.tie_embeddings ? "0" : linear("C", "V", c.bias), false],
    ];
  }

  /** @param {Config} c @returns {Row[]} */
  function ledger(c) {
    const sizes = letters(c);
    return formulas(c).map(([component, formula, each]) => {
      const copies = each ? c.n_layer : 1;
      return { component, formula, copies, total: formula ? BigInt(copies) * evaluate(formula, sizes) : 0n };
    });
  }

  /** Forward operations for a token of a full context, by part. @param {Config} c */
  function flops(c) {
    const { V, T, L, C, H, K, D, F } = letters(c);
    const mixing = 2n * L * T * H * D;
    return {
      projections: 2n * L * C * (2n * H * D + 2n * K * D), scores: mixing, mixing,
      MLP: 2n * L * (gated(c) ? 3n : 2n) * C * F, head: 2n * C * V,
    };
  }

  /** Bytes that training holds at its peak. @param {Config} c */
  function memory(c, batch, optimizer, kernel) {
    const { V, T, L, C, H, K, D, F } = letters(c), B = BigInt(batch);
    const all = sum(ledger(c).map((row) => row.total)), work = flops(c);
    const byMuon = optimizer === "muon" ? (work.projections + work.MLP) / 2n : 0n;
    const weights = kernel === "explicit" ? H * T : 0n, dropout = c.dropout > 0 ? 1n : 0n;
    const norms = 4n * C, projections = 2n * (C + H * D), three = 6n * H * D;
    const normed = c.qk_norm ? 2n * (H * D + K * D) : 0n;
    const mlp = 2n * (C + HIDDEN_TENSORS[c.mlp] * F);
    const layer = norms + projections + three + normed + (2n + 2n * dropout) * weights + mlp + dropout * (weights + 2n * C);
    const ends = dropout * C + (c.norm_position === "pre" ? 2n * C : 0n) + 2n * C + 4n * V;
    return {
      weights: 4n * all, gradients: 4n * all, optimizer: 8n * (all - byMuon) + 4n * byMuon,
      activations: B * T * (L * layer + ends),
    };
  }

  /** Everything that the widget shows of a config.
   * @param {Config} c @param {{batch: number, optimizer: string, kernel: string, bytes: number}} run */
  function costs(c, run) {
    const { V, T, L, C, H, K, D } = letters(c);
    const rows = ledger(c), total = sum(rows.map((row) => row.total));
    const work = flops(c), forward = sum(Object.values(work));
    const bytes = BigInt(run.bytes), cache = 2n * L * K * D * T * bytes;
    const held = memory(c, run.batch, run.optimizer, run.kernel);
    return {
      rows, total, rule: 12n * L * C * C + V * C, work, forward, training: 3n * forward,
      six: 6n * total, palm: 6n * total + 12n * L * H * D * T, kaplan: 3n * (work.projections + work.MLP + work.scores),
      held, peak: sum(Object.values(held)), cache, half: cache / 2n, serving: bytes * total, generating: bytes * total + cache,
    };
  }

  // Words -----------------------------------------------------------------------------------------

  /** Sizes of heads that fit, for a reader whose choice does not. */
  function wayOut({ d_model, n_head, n_kv_head, head_dim }) {
    const divisors = (n) => Array.from({ length: Math.min(n, 256) }, (_, i) => i + 1).filter((i) => n % i === 0);
    if (!head_dim && d_model % n_head) {
      const low = Math.floor(d_model / n_head) * n_head;
      return ` ${n_head} heads fit a width of ${low ? `${low} or ` : ""}${low + n_head}.`;
    }
    return n_kv_head && n_head % n_kv_head ? ` These divide ${n_head}: ${divisors(n_head).join(", ")}.` : "";
  }

  /** The same table without its numbers. */
  const blank = (x) => {
    if (typeof x !== "object" || x === null) return typeof x === "bigint" ? null : x;
    if (Array.isArray(x)) return x.map(blank);
    return Object.fromEntries(Object.entries(x).map(([name, value]) => [name, blank(value)]));
  };

  /** What the picture shows, in words. */
  function sentence(name, all) {
    const share = (...parts) => percent(sum(all.rows.filter((row) => parts.some((part) => row.component.includes(part))).map((row) => row.total)), all.total);
    const off = (100 * Number(all.rule - all.total)) / Number(all.total);
    const rule = Math.abs(off) < 0.05 ? "right to a tenth of a percent" : `${fixed(Math.abs(off), 1)} % too ${off > 0 ? "many" : "few"}`;
    return `${name} has ${whole(all.total)} parameters: ${share("embedding", "head")} in embeddings and head, ` +
      `${share("query", "key", "value", "attention output")} in attention, ${share("MLP up", "MLP gate", "MLP down")} in MLPs. ` +
      `The rule 12 L·C² + V·C says ${whole(all.rule)}, ${rule}.`;
  }

  const say = (value) => (value === null ? "as the rest" : typeof value === "boolean" ? (value ? "on" : "off") : String(value));

  /** "gpt2", or "gpt2 with n_layer = 24". */
  function nameOf(preset, changes) {
    const shown = changes.slice(0, 3).map(([word, value]) => `${word} = ${say(value)}`);
    if (changes.length > 3) shown.push(`${changes.length - 3} more changes`);
    return shown.length ? `${preset} with ${shown.join(", ")}` : preset;
  }

  // Pictures --------------------------------------------------------------------------------------

  /** The colour of each component; query, key and value have their own everywhere. */
  function colourOf(component, c) {
    const tint = (colour, t) => ramp([c.paper, colour], t);
    const own = { query: c.query, key: c.key, value: c.value, "attention output": c.stream,
      "token embedding": c.accent, "position embedding": tint(c.accent, 0.45), head: tint(c.accent, 0.75),
      "MLP up": tint(c.ink, 0.62), "MLP gate": tint(c.ink, 0.45), "MLP down": tint(c.ink, 0.3) };
    return own[component] ?? tint(c.ink, 0.85); // the norms, thin as they are
  }

  /** Four bars: the parameters, and what they cost.
   * @returns {{title: string, total: string, parts: Part[]}[]} */
  function bars(all, c, T) {
    const tint = (colour, t) => ramp([c.paper, colour], t);
    const part = (name, size, colour) => ({ name, size, colour });
    const { work, held } = all;
    return [
      { title: "Parameters", total: whole(all.total),
        parts: all.rows.map((row) => part(row.component, row.total, colourOf(row.component, c))) },
      { title: "Forward pass, one token", total: inFlops(all.forward),
        parts: [part("projections", work.projections, c.stream), part("scores", work.scores, c.query),
          part("mixing", work.mixing, c.value), part("MLP", work.MLP, tint(c.ink, 0.45)),
          part("head", work.head, tint(c.accent, 0.75))] },
      { title: "Training, bytes at the peak", total: inBytes(all.peak),
        parts: [part("weights", held.weights, c.accent), part("gradients", held.gradients, tint(c.accent, 0.6)),
          part("optimizer", held.optimizer, tint(c.accent, 0.3)), part("activations", held.activations, c.stream)] },
      { title: `Generating, ${whole(T)} tokens`, total: inBytes(all.generating),
        parts: [part("weights", all.serving, c.accent), part("keys", all.half, c.key), part("values", all.half, c.value)] },
    ];
  }

  /** A table with a caption; a row is its cells, the first a heading. */
  function table(caption, rows) {
    const line = ({ cells: [first, ...rest], kind }) =>
      h("tr", { class: kind }, h("th", { scope: "row" }, first), rest.map((cell) => h("td", {}, cell)));
    return h("table", { class: "gptedu-ledger" }, h("caption", {}, caption), h("tbody", {}, rows.map(line)));
  }

  function ledgerTable(all, colours) {
    const rows = all.rows.map(({ component, formula, copies, total }) => {
      const swatch = h("span", { class: "gptedu-swatch", style: `background:${colourOf(component, colours)}` });
      const words = formula === "0" ? "tied" : !formula ? "none" : copies === 1 ? formula : `${copies} × ${formula.includes("+") ? `(${formula})` : formula}`;
      return { kind: total ? null : "gptedu-absent", cells: [[swatch, component], h("code", {}, words), whole(total)] };
    });
    rows.push({ kind: "gptedu-sum", cells: ["total", "", whole(all.total)] });
    return table("Where the parameters are", rows);
  }

  function costTable(all) {
    const row = (name, number) => ({ cells: [name, whole(number)] });
    return table("What they cost, exactly", [
      row("forward, a token", all.forward), row("and backward", all.training), row("rule 6 N", all.six),
      row("PaLM’s rule", all.palm), row("Kaplan’s rule", all.kaplan),
      row("weights, bytes", all.held.weights), row("gradients", all.held.gradients), row("optimizer", all.held.optimizer),
      row("activations", all.held.activations), { ...row("peak of training", all.peak), kind: "gptedu-sum" },
      row("generating: weights", all.serving), row("generating: cache", all.cache),
    ]);
  }

  const STEP = 76; // px, from bar to bar

  // Controls --------------------------------------------------------------------------------------

  const LARGEST = 10_000_000;
  const upTo = (n) => Array.from({ length: n }, (_, i) => i + 1);
  const powers = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => 2 ** (from + i));
  const STOPS = {
    d_model: [...powers(3, 14), 96, 192, 384, 768, 1280, 1536], n_layer: upTo(128), n_head: upTo(128), n_kv_head: upTo(128),
    head_dim: powers(1, 9), d_ff: [...powers(5, 16), 96, 192, 384, 768], vocab_size: [65, ...powers(6, 18)], context_length: powers(3, 17),
  };

  /** A slider and a field for the same whole number. In the field any number will do; where the word
   * may follow others, the slider's first stop and an empty field mean that it does. */
  function wholeNumber(view, trait, label, follows) {
    const known = Object.values(view.get("presets")).map((words) => words[trait]);
    const numbers = [...new Set([...STOPS[trait], ...known.filter((n) => n !== null)])].sort((a, b) => a - b);
    const stops = follows ? [null, ...numbers] : numbers;
    const range = h("input", { type: "range", min: 0, max: stops.length - 1, step: 1,
      oninput: () => view.set({ [trait]: stops[Number(range.value)] }) });
    const field = h("input", { type: "number", min: 1, max: LARGEST, step: 1, "aria-label": `${label}, any number`,
      placeholder: follows, "data-lm-suppress-shortcuts": "true", oninput: () => take(), onchange: () => show(view.get(trait)) });
    const take = () => {
      const number = Math.round(Number(field.value));
      if (field.value === "" && follows && !field.validity.badInput) view.set({ [trait]: null });
      else if (number >= 1) view.set({ [trait]: Math.min(LARGEST, number) });
    };
    const show = (value) => {
      const near = stops.reduce((best, stop, i) => (stop !== null && value !== null && Math.abs(stop - value) < Math.abs((stops[best] ?? Infinity) - value) ? i : best), 0);
      range.value = String(near);
      range.setAttribute("aria-valuetext", value === null ? `follows: ${follows}` : whole(value));
      if (field !== document.activeElement && field.getRootNode().activeElement !== field) field.value = value ?? "";
    };
    field.addEventListener("blur", () => show(view.get(trait)));
    const el = view.control(trait, label, range, field);
    view.follow(trait, show);
    return el;
  }

  GptEdu.widget("parameters", {
    async render(view) {
      const presets = view.get("presets");
      const start = () => presets[view.get("preset")];
      view.row(
        view.select("preset", { label: "Model", options: Object.keys(presets) }),
        view.button("Back to this preset", () => view.set(start())),
      );
      view.on("change:preset", () => view.set(start()));
      view.add(h("div", { class: "gptedu-columns" }, [
        wholeNumber(view, "d_model", "C  d_model"), wholeNumber(view, "n_layer", "L  n_layer"),
        wholeNumber(view, "n_head", "H  n_head"), wholeNumber(view, "n_kv_head", "K  n_kv_head", "= H"),
        wholeNumber(view, "head_dim", "D  head_dim", "= C / H"), wholeNumber(view, "d_ff", "F  d_ff", "= 4 C"),
        wholeNumber(view, "vocab_size", "V  vocab_size"), wholeNumber(view, "context_length", "T  context_length"),
      ]));
      const asBias = [[null, "as bias"], [true, "on"], [false, "off"]];
      const batches = [...new Set([...powers(0, 10), view.get("batch_size")])].sort((a, b) => a - b);
      view.row(
        view.select("position", { label: "position", options: ["learned", "sinusoidal", "rope", "none"] }),
        view.select("norm", { label: "norm", options: ["layernorm", "rmsnorm"] }),
        view.select("mlp", { label: "mlp", options: Object.keys(HIDDEN_TENSORS) }),
        view.checkbox("bias", { label: "bias" }),
        view.checkbox("tie_embeddings", { label: "tie_embeddings" }),
      );
      view.add(h("details", { class: "gptedu-more" }, h("summary", {}, "More words, and how it runs"), h("div", { class: "gptedu-row" }, [
        view.select("norm_position", { label: "norm_position", options: ["pre", "post"] }),
        view.select("qkv_bias", { label: "qkv_bias", options: asBias }),
        view.select("norm_bias", { label: "norm_bias", options: asBias }),
        view.checkbox("qk_norm", { label: "qk_norm" }),
        view.slider("dropout", { label: "dropout", min: 0, max: 0.9, step: 0.05, digits: 2 }),
        view.slider("batch_size", { label: "Batch", values: batches }),
        view.select("optimizer", { label: "Optimizer", options: ["adamw", "muon"] }),
        view.select("kernel", { label: "Attention in training", options: ["explicit", "fused"] }),
        view.select("number_bytes", { label: "Generating with", options: [[4, "32 bit"], [2, "16 bit"], [1, "8 bit"]] }),
      ])));
      const extra = ["batch_size", "optimizer", "kernel", "number_bytes"];
      const picture = view.picture((width, colours) => ({
        height: 4 * STEP - 6,
        label: state.label,
        children: bars(state.all, colours, state.T).flatMap((bar, i) => drawBar(bar, i * STEP, width, colours)),
      }));
      const tables = h("div", { class: "gptedu-tables" });
      view.add(picture.el);
      view.status();
      view.add(tables);
      view.menu();
      let state;

      const changes = () => WORDS.filter((word) => view.get(word) !== start()[word]).map((word) => [word, view.get(word)]);
      const show = () => {
        const changed = changes(), name = nameOf(view.get("preset"), changed);
        const shown = view.get("preset") === "own" ? WORDS : ["preset", ...changed.map(([word]) => word)];
        view.bound = new Set([...shown, ...extra]);
        state = work(view, name);
        picture.update();
        tables.replaceChildren(ledgerTable(state.all, view.palette()), costTable(state.all));
        view.line.style.minHeight = view.el.clientWidth < 500 ? "7.6em" : "4.5em"; // nothing below moves
        view.say(state.label);
      };
      await view.draw(show);
    },
  });

  /** The numbers of the config that the controls say, or the reason why it is none. */
  function work(view, name) {
    const words = Object.fromEntries(WORDS.map((word) => [word, view.get(word)]));
    const run = { batch: view.get("batch_size"), optimizer: view.get("optimizer"), kernel: view.get("kernel"), bytes: view.get("number_bytes") };
    const T = words.context_length;
    let config;
    try {
      config = GptEdu.gptConfig(words);
    } catch (error) {
      const label = `There is no such model: ${error.message}.${wayOut(words)}`;
      const possible = GptEdu.gptConfig({ ...words, head_dim: 2, n_kv_head: null }); // for its formulas only
      return { all: blank(costs(possible, run)), T, label };
    }
    const all = costs(config, run);
    return { all, T, label: sentence(name, all) };
  }

  GptEdu.parameters = { ledger, costs, sentence };
})((globalThis.GptEdu ||= {}));
