/* mlp.js: the activation explorer. Above, a bend, its slope and an input; below, one hidden unit of a
 * model on a text, as a bar for each token, and the tokens that its value vector speaks for. */
(function (GptEdu) {
  "use strict";
  const { svg, visible, fixed } = GptEdu;

  // Arithmetic: pure ------------------------------------------------------------------------------

  const ROOT = Math.sqrt(2 / Math.PI), sigmoid = (x) => 1 / (1 + Math.exp(-x));
  const wave = (x) => Math.tanh(ROOT * (x + 0.044715 * x ** 3));

  /** Each bend: its name, its value, its slope. @type {Record<string, [string, (x: number) => number, (x: number) => number]>} */
  const BENDS = {
    relu: ["ReLU", (x) => Math.max(x, 0), (x) => (x > 0 ? 1 : 0)],
    gelu: ["GELU", (x) => (x / 2) * (1 + wave(x)),
      (x) => (1 + wave(x)) / 2 + (x / 2) * (1 - wave(x) ** 2) * ROOT * (1 + 3 * 0.044715 * x * x)],
    relu2: ["Squared ReLU", (x) => Math.max(x, 0) ** 2, (x) => 2 * Math.max(x, 0)],
    silu: ["SiLU", (x) => x * sigmoid(x), (x) => sigmoid(x) * (1 + x * (1 - sigmoid(x)))],
  };

  /** The tokens that a unit's value vector raises most, read by the head as if nothing came after.
   * @returns {number[]} ids */
  function pushes(model, layer, unit, n = 4) {
    const { d_model: C, d_ff: F, vocab_size: V, tie_embeddings } = model.config;
    const data = (name) => model.tensors.get(name)?.data;
    const down = data(`blocks.${layer}.mlp.down.weight`), gain = data("final_norm.weight");
    const head = data(tie_embeddings ? "token_embedding.weight" : "head.weight");
    const value = Float64Array.from({ length: C }, (_, c) => down[c * F + unit] * (gain ? gain[c] : 1));
    const score = (v) => value.reduce((sum, x, c) => sum + x * head[v * C + c], 0);
    const scores = Array.from({ length: V }, (_, v) => score(v));
    return [...scores.keys()].sort((a, b) => scores[b] - scores[a]).slice(0, n);
  }

  /** The first unit after this one that is above 0 anywhere on the text. */
  function nextUnit(hidden, F, unit) {
    for (let step = 1; step <= F; step++) {
      const other = (unit + step) % F;
      for (let at = other; at < hidden.length; at += F) if (hidden[at] > 0) return other;
    }
    return unit;
  }

  // Drawing -----------------------------------------------------------------------------------------

  const HIGH = 210, LOW = -4, TOP = 4, LINE = 74, BAR = 36; // px, inputs, inputs, px, px

  /** The bend, its slope, and the tangent at the input. */
  function curve(bend, x, width, colours) {
    const [name, f, slope] = BENDS[bend], left = 30, right = width - 8;
    const across = (value) => left + ((value - LOW) / (TOP - LOW)) * (right - left);
    const up = (value) => 184 - (Math.min(4.2, Math.max(-1.2, value)) + 1) * 32;
    const steps = Array.from({ length: 161 }, (_, i) => LOW + i / 20);
    const inside = (g) => steps.filter((at) => g(at) < 4.2);
    const path = (g) => inside(g).map((at, i) => `${i ? "L" : "M"}${across(at).toFixed(1)} ${up(g(at)).toFixed(1)}`).join("");
    const line = (d, stroke, more) => svg("path", { d, stroke, fill: "none", "stroke-width": 2.2, ...more });
    const quiet = { class: "gptedu-number gptedu-muted" };
    const out = [svg("text", { x: left, y: 14, class: "gptedu-title" }, `${name} and its slope`)];
    for (const value of [-1, 0, 1, 2, 3, 4]) {
      out.push(line(`M${left} ${up(value)}H${right}`, value ? colours.rule : colours.muted, { "stroke-width": 1 }));
      out.push(svg("text", { x: left - 6, y: up(value) + 4, "text-anchor": "end", ...quiet }, fixed(value, 0)));
    }
    for (const value of [-4, -2, 0, 2, 4]) out.push(svg("text", { x: across(value), y: 204, "text-anchor": "middle", ...quiet }, fixed(value, 0)));
    const ends = [Math.max(LOW, x - 1.2), Math.min(TOP, x + 1.2)].map((at) => `${across(at)} ${up(f(x) + slope(x) * (at - x))}`);
    out.push(line(path(slope), colours.key), line(path(f), colours.query));
    out.push(line(`M${ends.join("L")}`, colours.muted, { "stroke-dasharray": "5 4", "stroke-width": 1.6 }));
    for (const [g, colour] of [[slope, colours.key], [f, colours.query]]) {
      out.push(svg("circle", { cx: across(x), cy: up(g(x)), r: 4.5, fill: colour, stroke: colours.paper, "stroke-width": 1.5 }));
    }
    out.push(svg("text", { x: left + 8, y: 40, fill: colours.query }, `${name}(${fixed(x, 1)}) = ${fixed(f(x))}`));
    out.push(svg("text", { x: left + 8, y: 60, fill: colours.key }, `slope ${fixed(slope(x))}`));
    return { height: HIGH, children: out, label: `${name} at ${fixed(x, 1)} is ${fixed(f(x))}, its slope ${fixed(slope(x))}` };
  }

  /** Each token, and above it a bar: how strongly the unit fires there; below 0 hangs down. */
  function barsOnText(names, fires, width, colours) {
    const cell = Math.max(16, 7.3 * Math.max(...names.map((name) => [...name].length)) + 6);
    const perLine = Math.max(1, Math.floor((width - 2) / cell));
    const largest = Math.max(...fires.map(Math.abs)) || 1, top = fires.indexOf(Math.max(...fires));
    const children = names.flatMap((name, i) => {
      const x = 1 + (i % perLine) * cell, y = 18 + Math.floor(i / perLine) * LINE;
      const size = (BAR * Math.abs(fires[i])) / largest, middle = { x: x + cell / 2, "text-anchor": "middle" };
      const foot = fires[i] > 0 ? y + BAR - size : y + BAR, marks = [];
      if (size >= 0.5) marks.push(svg("rect", { x: x + 2, y: foot, width: cell - 4, height: Math.min(size, LINE - BAR), fill: fires[i] > 0 ? colours.query : colours.key, opacity: fires[i] > 0 ? 1 : 0.35 }));
      if (i === top && fires[i] > 0) marks.push(svg("text", { ...middle, y: foot - 3, class: "gptedu-number" }, fixed(fires[i], 1)));
      marks.push(svg("path", { d: `M${x} ${y + BAR}h${cell}`, stroke: colours.rule }));
      return [...marks, svg("text", { ...middle, y: y + BAR + 16, class: "gptedu-token" }, name)];
    });
    return { height: 18 + Math.ceil(names.length / perLine) * LINE, children, label: "The text, with a bar for how strongly the unit fires at each token" };
  }

  GptEdu.activations = { BENDS, pushes, nextUnit };

  GptEdu.widget("mlp", {
    async render(view) {
      const { model, tokenizer } = await view.load();
      const { n_layer: L, d_ff: F, context_length } = model.config;
      const within = (trait, n) => Math.min(view.get(trait), n) - 1;
      /** @type {{key: string, names: string[], hidden: Float32Array[], notes: string}} */
      let seen = { key: "", names: [], hidden: [], notes: "" };
      const bends = Object.entries(BENDS).map(([key, [name]]) => [key, name]);
      view.row(view.select("bend", { label: "Bend", options: bends }), view.slider("x", { label: "Input x", min: LOW, max: TOP, step: 0.1, digits: 1 }));
      const bend = view.picture((width, colours) => curve(view.get("bend"), view.get("x"), width, colours));
      view.add(bend.el);
      view.row(view.text("text", { label: "Text", rows: 3 }));
      const next = () => view.set({ unit: nextUnit(seen.hidden[within("layer", L)], F, within("unit", F)) + 1 });
      const loudest = () => view.set({ unit: GptEdu.argmax(seen.hidden[within("layer", L)].slice(-F)) + 1 });
      view.row(view.slider("layer", { label: "Layer", min: 1, max: L }), view.slider("unit", { label: "Unit", min: 1, max: F }),
        view.button("Next that fires", next), view.button("Loudest at the end", loudest));
      const fires = () => Array.from(seen.names, (_, t) => seen.hidden[within("layer", L)][t * F + within("unit", F)]);
      const line = view.picture((width, colours) => barsOnText(seen.names, fires(), width, colours));
      view.add(line.el);
      view.status();
      view.menu();

      const sentence = () => {
        const h = fires(), above = h.filter((value) => value > 0).length;
        const best = [...h.keys()].filter((t) => h[t] > 0).sort((s, t) => h[t] - h[s]).slice(0, 3);
        const context = (t) => `“${seen.names.slice(Math.max(0, t - 9), t + 1).join("")}” (${fixed(h[t], 1)})`;
        const who = `Layer ${within("layer", L) + 1}, unit ${within("unit", F) + 1}`;
        const quoted = (names) => names.map((name) => `“${name}”`).join(" ");
        const raised = pushes(model, within("layer", L), within("unit", F)).map((id) => visible(tokenizer.piece(id)));
        const where = above ? `, most at the end of ${best.map(context).join(", ")}` : "";
        return `${who} is above 0 on ${above} of ${h.length} tokens${where}. Its value raises ${quoted(raised)}.${seen.notes}`;
      };
      await view.draw(view.latest(async (signal) => {
        bend.update();
        const { text, dropped } = tokenizer.usable(view.get("text").slice(0, 20000));
        const all = tokenizer.encode(text || tokenizer.usable("\n").text || tokenizer.piece(0)), ids = all.slice(0, context_length);
        if (String(ids) !== seen.key) {
          const { named } = await model.trace(ids, { signal });
          const hidden = Array.from({ length: L }, (_, i) => named.get(`blocks.${i}.mlp.hidden`).data);
          const cut = all.length > ids.length ? ` Only the first ${ids.length} of ${all.length.toLocaleString("en")} tokens are read.` : "";
          seen = { key: String(ids), names: ids.map((id) => visible(tokenizer.piece(id))), hidden, notes: cut };
        }
        const left = dropped.length ? ` Left out: ${dropped.slice(0, 6).map((sign) => `“${visible(sign)}”`).join(" ")}, which this model never met.` : "";
        seen.notes = seen.notes.replace(/ Left out.*$/, "") + left;
        line.update();
        view.line.style.minHeight = view.el.clientWidth < 500 ? "9em" : "4.5em";
        view.say(sentence());
      }));
    },
  });
})((globalThis.GptEdu ||= {}));
