/* The model map: the whole GPT as a road (the residual stream) with boxes beside it and on it. A box
 * opens to its formula, its shapes, its parameters and its chapter. `boxes` says what there is,
 * `layout` where it stands, `draw` only draws. */
(function (GptEdu) {
  "use strict";
  const { h, svg, fixed, ramp } = GptEdu;

  /** @typedef {Record<string, any>} Config */
  /** @typedef {{id: string, name: string, role?: string, tells: string, formula: string, takes?: string[],
   *   gives: string[], weights?: [string, string[]][], chapter: string, place: string, label: string}} Box
   *   A shape is a list of letters or products of letters; `place` says where the box stands. */

  const WORDS = ["vocab_size", "context_length", "n_layer", "n_head", "n_kv_head", "head_dim", "d_model",
    "d_ff", "dropout", "bias", "qkv_bias", "norm_bias", "tie_embeddings", "position", "norm",
    "norm_position", "mlp", "qk_norm"];
  const NUMBERS = { tokenizer: 1, embedding: 2, attention: 3, multihead: 4, mlp: 5, block: 6, model: 7, generation: 10 };
  const STREAM = ["B", "T", "C"];
  const BENDS = { relu: "max(0, u)", gelu: "GELU(u)", relu2: "max(0, u)²", swiglu: "SiLU(g) · u", geglu: "GELU(g) · u" };

  // What there is: pure ---------------------------------------------------------------------------

  /** @param {Config} c @returns {Box[]} in the order in which data meets them */
  function boxes(c) {
    const gated = c.mlp.endsWith("glu"), post = c.norm_position === "post";
    const bias = (there, name, size) => (there ? [[name, [size]]] : []);
    const normWeights = [["gain", ["C"]], ...bias(c.norm === "layernorm" && c.norm_bias, "bias", "C")];
    const normFormula = c.norm === "rmsnorm"
      ? "gain · x / √(mean(x²) + ε)"
      : `gain · (x − mean) / √(variance + ε)${normWeights.length > 1 ? " + bias" : ""}`;
    const normName = c.norm === "rmsnorm" ? "RMSNorm" : "LayerNorm";
    const norm = (id, name, place, tells) => ({
      id, name, label: normName, place, tells, formula: normFormula, takes: STREAM, gives: STREAM, weights: normWeights, chapter: "block",
    });
    const kvHeads = c.n_kv_head === c.n_head ? "H" : "K";
    const project = (id, letter, heads, tells) => ({
      id, name: id, label: id, role: id, place: "columns", tells, chapter: "multihead", takes: STREAM,
      formula: `${letter} = split(x W_${letter}${c.qkv_bias ? " + b" : ""})`,
      gives: ["B", heads, "T", "D"], weights: [[`W_${letter}`, ["C", `${heads}·D`]], ...bias(c.qkv_bias, "b", `${heads}·D`)],
    });
    const shared = c.n_kv_head < c.n_head ? ` K = ${c.n_kv_head} of them serve H = ${c.n_head} query heads.` : "";
    const tables = {
      learned: { name: "position embedding", label: "+ learned positions", formula: "x = x + P[0 … T−1]", weights: [["P", ["T", "C"]]],
        tells: "A trained row for each place. Without it, attention could not tell order." },
      sinusoidal: { name: "sinusoidal positions", label: "+ sinusoids", formula: "PE(t, 2i) = sin(t / 10000^(2i/C))\nPE(t, 2i+1) = cos(t / 10000^(2i/C))",
        tells: "A fixed row for each place, made of waves of many lengths. Nothing is learned." },
    };
    const table = tables[c.position];
    return [
      { id: "ids", name: "token ids", label: "token ids", place: "road", tells: "Whole numbers from 0 to V − 1: the text, cut into tokens.",
        formula: "ids = tokenizer.encode(text)", gives: ["B", "T"], chapter: "tokenizer" },
      { id: "token_embedding", name: "token embedding", label: "token embedding", place: "road", chapter: "embedding",
        tells: "Each id picks its row of the table E. Here the stream begins.", formula: "x = E[ids]", takes: ["B", "T"], gives: STREAM, weights: [["E", ["V", "C"]]] },
      table && { id: "position_embedding", place: "road", chapter: "embedding", takes: STREAM, gives: STREAM, ...table },
      !post && norm("attention_norm", "attention norm", "branch", "Brings what attention reads to one size. The stream itself stays as it is."),
      project("query", "Q", "H", "What each position looks for. The width is cut into H heads of D numbers."),
      project("key", "K", kvHeads, `What each position offers to be found by.${shared}`),
      project("value", "V", kvHeads, `What each position hands on when it is found.${shared}`),
      c.qk_norm && { id: "query_and_key_norm", name: "query and key norm", label: "RMSNorm on Q and K", place: "left", chapter: "modern",
        tells: "Queries and keys get one size, so that scores cannot grow without end.", formula: "gain · q / √(mean(q²) + ε), and the same for k",
        takes: ["B", "H", "T", "D"], gives: ["B", "H", "T", "D"], weights: [["query gain", ["D"]], ["key gain", ["D"]]] },
      c.position === "rope" && { id: "rotary", name: "rotary positions", label: "rotate Q and K", place: "left", chapter: "embedding",
        tells: "Queries and keys are turned by angles that grow with their place. A score then depends on the distance.",
        formula: "pair (i, i + D/2) at place t turns by t · base^(−2i/D)", takes: ["B", "H", "T", "D"], gives: ["B", "H", "T", "D"] },
      { id: "weights", name: "attention weights", label: "softmax(mask(Q Kᵀ / √D))", place: "left", chapter: "attention",
        tells: "Every query meets every key before it. What comes later is masked; each row adds up to 1.",
        formula: "A = softmax(mask(Q Kᵀ / √D))", takes: ["B", "H", "T", "D"], gives: ["B", "H", "T", "T"] },
      { id: "mix", name: "mix of values", label: "A V", place: "full", chapter: "attention",
        tells: "Each position collects the values that its weights point to. The only place where positions meet.",
        formula: "heads = A V", takes: ["B", "H", "T", "T"], gives: ["B", "H", "T", "D"] },
      { id: "output", name: "attention output", label: "merge heads, W_O", place: "full", chapter: "multihead",
        tells: "The heads stand side by side again, and W_O mixes what they found.",
        formula: `merge(heads) W_O${c.bias ? " + b" : ""}`, takes: ["B", "H", "T", "D"], gives: STREAM, weights: [["W_O", ["H·D", "C"]], ...bias(c.bias, "b", "C")] },
      { id: "attention_add", name: "first addition", label: "+", place: "add", chapter: "block", takes: STREAM, gives: STREAM,
        tells: "What attention found is added to the stream. Nothing that was there is lost.", formula: post ? "x = x + attention(x)" : "x = x + attention(norm(x))" },
      post && norm("attention_norm", "attention norm", "road", "Post-norm: the stream itself is brought to one size after the addition."),
      !post && norm("mlp_norm", "MLP norm", "branch", "Brings what the MLP reads to one size."),
      { id: "mlp_up", name: "MLP up", label: "W_up", place: gated ? "half" : "full", chapter: "mlp", takes: STREAM, gives: ["B", "T", "F"],
        tells: "Each position by itself, into a wider space of F units.", formula: `u = x W_up${c.bias ? " + b" : ""}`, weights: [["W_up", ["C", "F"]], ...bias(c.bias, "b", "F")] },
      gated && { id: "mlp_gate", name: "MLP gate", label: "W_gate", place: "half", chapter: "mlp", takes: STREAM, gives: ["B", "T", "F"],
        tells: "A second look at the same input: it opens and closes the units of the first.", formula: `g = x W_gate${c.bias ? " + b" : ""}`, weights: [["W_gate", ["C", "F"]], ...bias(c.bias, "b", "F")] },
      { id: "mlp_bend", name: "bend", label: BENDS[c.mlp], place: "full", chapter: "mlp", takes: ["B", "T", "F"], gives: ["B", "T", "F"],
        tells: "Without a bend, two matrices in a row would be one.", formula: `h = ${BENDS[c.mlp]}` },
      { id: "mlp_down", name: "MLP down", label: "W_down", place: "full", chapter: "mlp", takes: ["B", "T", "F"], gives: STREAM,
        tells: "Back to the width of the stream.", formula: `h W_down${c.bias ? " + b" : ""}`, weights: [["W_down", ["F", "C"]], ...bias(c.bias, "b", "C")] },
      { id: "mlp_add", name: "second addition", label: "+", place: "add", chapter: "block", takes: STREAM, gives: STREAM,
        tells: "What the MLP found is added too; the next block reads the sum.", formula: post ? "x = x + mlp(x)" : "x = x + mlp(norm(x))" },
      post && norm("mlp_norm", "MLP norm", "road", "Post-norm: once more after the second addition. So there is no final norm."),
      !post && norm("final_norm", "final norm", "road", "The stream has grown with every addition; the head reads it at one size."),
      { id: "head", name: "head", label: "head", place: "road", chapter: "model", takes: STREAM, gives: ["B", "T", "V"],
        tells: c.tie_embeddings ? "A score for every token of the vocabulary. The matrix is the embedding's own, so it costs nothing more." : "A score for every token of the vocabulary, at every position.",
        formula: c.tie_embeddings ? "logits = x Eᵀ" : `logits = x W_head${c.bias ? " + b" : ""}`,
        weights: c.tie_embeddings ? [] : [["W_head", ["C", "V"]], ...bias(c.bias, "b", "V")] },
      { id: "next", name: "next token", label: "softmax → next token", place: "road", chapter: "generation", takes: ["B", "T", "V"], gives: ["B", "T", "V"],
        tells: "Scores become probabilities. The last position's are those of the next token.", formula: "p = softmax(logits)" },
    ].filter(Boolean);
  }

  const IN_BLOCK = (box) => !["ids", "token_embedding", "position_embedding", "final_norm", "head", "next"].includes(box.id);

  const letters = (c, B) => ({ B, T: c.context_length, L: c.n_layer, C: c.d_model, H: c.n_head, K: c.n_kv_head, D: c.head_dim, F: c.d_ff, V: c.vocab_size });
  /** The value of "H·D". */
  const product = (term, sizes) => term.split("·").reduce((n, letter) => n * sizes[letter], 1);
  /** The parameters of one copy. @param {Box} box */
  const count = (box, sizes) =>
    (box.weights ?? []).reduce((total, [, shape]) => total + shape.reduce((n, term) => n * product(term, sizes), 1), 0);
  const copies = (box, sizes) => (IN_BLOCK(box) ? sizes.L : 1);
  const whole = (n) => n.toLocaleString("en");
  const tuple = (shape) => `(${shape.join(", ")})`;
  const numbers = (shape, sizes) => tuple(shape.map((term) => product(term, sizes)));

  // Where it stands: pure -------------------------------------------------------------------------

  const ROAD = 30, EDGE = 62, BOX = 34, GAP = 16; // px

  /** Places for a width. Below the row that has the open box, `gap` px stay free for its card.
   * @param {Box[]} all @param {number} width @param {{opened: string, gap: number}} card */
  function layout(all, width, { opened, gap }) {
    const right = width - 16, span = right - EDGE, third = (span - 16) / 3;
    const columns = { query: 0, key: 1, value: 2 };
    const places = new Map(), splits = [];
    let y = 4, block = null, start = 0;
    const put = (box, x, wide, high = BOX) => places.set(box.id, { x, y, wide, high });
    const next = (row, high = BOX) => {
      y += high + GAP;
      if (!row.some((box) => box.id === opened)) return;
      y += gap;
    };
    for (let i = 0; i < all.length; i++) {
      const box = all[i];
      if (IN_BLOCK(box) && !block) {
        block = { top: y, bottom: 0 };
        y += 38;
        splits.push(y - 10);
      }
      if (block && !block.bottom && !IN_BLOCK(box)) {
        block.bottom = y - 4;
        y += 16;
      }
      if (box.place === "road") (put(box, 10, Math.min(250, width - 100)), next([box]));
      else if (box.place === "columns") {
        put(box, EDGE + columns[box.id] * (third + 8), third, 44);
        if (box.id === "value") next(all.filter((one) => one.place === "columns"), 44);
      } else if (box.place === "left") (put(box, EDGE, 2 * third + 8, 44), next([box], 44));
      else if (box.place === "half") {
        put(box, box.id === "mlp_up" ? EDGE : EDGE + span / 2 + 4, span / 2 - 4, 44);
        if (box.id === "mlp_gate") next(all.filter((one) => one.place === "half"), 44);
      } else if (box.place === "add") {
        y -= 4;
        put(box, ROAD - 12, 24, 24);
        next([box], 24);
        if (box.id === "attention_add" && all[i + 1].place !== "road") splits.push(y - 10);
      } else (put(box, EDGE, span), next([box]));
      if (box.id === "attention_norm" && box.place === "road") splits.push(y - 10);
    }
    return { places, splits, block, width, height: y - GAP + 6, right, third };
  }

  // Pictures --------------------------------------------------------------------------------------

  const line = (d, stroke, more = {}) => svg("path", { d, fill: "none", stroke, "stroke-width": 1.5, ...more });
  /** An arrow head that points down, or left. */
  const head = (x, y, fill, left = false) =>
    svg("path", { fill, d: left ? `M${x} ${y}l8 -4v8z` : `M${x} ${y}l-4 -7h8z` });

  /** The road, the frame of the block, and the lines between boxes. */
  function roads(all, plan, c, colours) {
    const { places, splits, block, right, third } = plan, at = (id) => places.get(id);
    const wire = colours.muted, out = [];
    const frame = { x: 4, y: block.top, width: plan.width - 8, height: block.bottom - block.top, rx: 8, fill: "none", stroke: colours.rule };
    if (c.n_layer > 1) out.push(svg("rect", { ...frame, x: 7, y: block.top + 4 }));
    out.push(svg("rect", { ...frame, "stroke-width": 1.5, fill: colours.paper }));
    const times = `block, × ${whole(c.n_layer)}`;
    out.push(svg("text", { x: right, y: block.top + 19, "text-anchor": "end", class: "gptedu-title" }, times));
    out.push(line(`M${ROAD} ${at("token_embedding").y + 17}V${at("head").y + 17}`, colours.stream, { "stroke-width": 9, opacity: 0.55, "stroke-linecap": "round" }));
    const bottom = (id) => at(id).y + at(id).high, centre = (id) => at(id).x + at(id).wide / 2;
    const down = (x, from, to, colour = wire) => out.push(line(`M${x} ${from}V${to - 3}`, colour), head(x, to, colour));
    down(ROAD, bottom("ids"), at("token_embedding").y);
    down(ROAD, bottom("head"), at("next").y);
    const back = (from, to) => {
      const y = at(to).y + 12;
      out.push(line(`M${centre(from)} ${bottom(from)}V${y}H${ROAD + 22}`, wire), head(ROAD + 13, y, wire, true));
    };
    const enter = (y, targets) => { // from the road to one or more boxes
      const far = Math.max(...targets.map(centre));
      out.push(line(`M${ROAD} ${y}H${far}`, wire));
      for (const id of targets) down(centre(id), y, at(id).y);
    };
    const ups = at("mlp_gate") ? ["mlp_up", "mlp_gate"] : ["mlp_up"];
    const fan = (from, targets) => {
      const y = bottom(from) + 7;
      if (at(targets[0]).y - y > 12) return targets.forEach((id) => down(centre(id), y, at(id).y)); // a card lies between
      out.push(line(`M${centre(from)} ${bottom(from)}V${y}M${centre(targets[0])} ${y}H${centre(targets.at(-1))}`, wire));
      return targets.forEach((id) => down(centre(id), y, at(id).y));
    };
    const three = ["query", "key", "value"];
    if (c.norm_position === "pre") {
      enter(splits[0], ["attention_norm"]);
      fan("attention_norm", three);
      enter(splits[1], ["mlp_norm"]);
      fan("mlp_norm", ups);
    } else {
      enter(splits[0], three);
      enter(splits[1], ups);
    }
    const chain = ["query_and_key_norm", "rotary", "weights"].filter(at);
    for (const role of ["query", "key"]) down(centre(role), bottom(role), at(chain[0]).y, colours[role]);
    chain.slice(1).forEach((id, i) => ["query", "key"].forEach((role) => down(centre(role), bottom(chain[i]), at(id).y, colours[role])));
    down(EDGE + third + 4, bottom("weights"), at("mix").y);
    down(centre("value"), bottom("value"), at("mix").y, colours.value);
    down(centre("mix"), bottom("mix"), at("output").y);
    back("output", "attention_add");
    for (const id of ups) down(centre(id), bottom(id), at("mlp_bend").y);
    down(centre("mlp_bend"), bottom("mlp_bend"), at("mlp_down").y);
    back("mlp_down", "mlp_add");
    return out;
  }

  const colourOf = (box, colours) => colours[box.role] ?? (["road", "add"].includes(box.place) ? colours.stream : colours.muted);

  /** One box, which is a button. */
  function drawBox(box, place, sizes, opened, colours, open) {
    const { x, y, wide, high } = place, own = colourOf(box, colours);
    const fill = ramp([colours.paper, own], box.id === opened ? 0.32 : box.role ? 0.14 : 0.07);
    const n = count(box, sizes);
    const label = `${box.name}, ${tuple(box.gives)}, ${n ? `${whole(n)} parameters` : "no parameters"}`;
    const onRoad = box.place === "road", two = ["columns", "left", "half"].includes(box.place); // name above shape
    const middle = { x: x + wide / 2, "text-anchor": "middle" };
    const small = { class: "gptedu-number gptedu-muted" }, shape = tuple(box.gives);
    let texts = [svg("text", { x: x + (onRoad ? ROAD + 8 : 10), y: y + 21 }, box.label), svg("text", { x: x + wide - 8, y: y + 21, "text-anchor": "end", ...small }, shape)];
    if (two) texts = [svg("text", { ...middle, y: y + 18, fill: colours[box.role], "font-weight": box.role && 600 }, box.label), svg("text", { ...middle, y: y + 35, ...small }, shape)];
    if (box.place === "add") texts = [svg("text", { ...middle, y: y + 17, "font-weight": 600 }, box.label)];
    return svg("g", { class: "gptedu-box", role: "button", tabindex: 0, "data-box": box.id, "aria-label": label, "aria-expanded": String(box.id === opened),
      "data-lm-suppress-shortcuts": "true", onclick: () => open(box.id) },
    svg("rect", { x, y, width: wide, height: high, rx: wide > 24 ? 5 : 12, fill, "fill-opacity": onRoad ? 0.82 : null, stroke: own, "stroke-width": box.id === opened ? 2.5 : 1.3 }), texts);
  }

  // The card --------------------------------------------------------------------------------------

  /** Where the chapter is, or its name where there is none. @param {Box} box */
  function chapter(box, links) {
    const number = NUMBERS[box.chapter] ?? 12, words = `chapter ${number}, ${box.chapter}`;
    const address = links[box.chapter];
    const safe = address && URL.canParse(address, document.baseURI) && ["http:", "https:", "file:"].includes(new URL(address, document.baseURI).protocol);
    if (!safe) return words;
    return h("a", { href: address }, words);
  }

  /** @param {Box} box */
  function cardContent(box, sizes, total, links) {
    const row = (name, ...cells) => h("tr", {}, h("th", { scope: "row" }, name), cells.map((cell) => h("td", {}, cell)));
    const shape = (name, one) => row(name, h("code", {}, tuple(one)), numbers(one, sizes));
    const n = count(box, sizes), times = copies(box, sizes);
    const parameters = !n ? "none" : times > 1 ? `${whole(n)} × ${whole(times)}` : whole(n);
    return [
      h("p", {}, h("strong", {}, box.name)),
      h("p", {}, box.tells),
      h("div", { class: "gptedu-formula" }, box.formula),
      h("table", { class: "gptedu-ledger" }, h("tbody", {},
        box.takes ? shape("reads", box.takes) : null, shape("gives", box.gives), (box.weights ?? []).map(([name, one]) => shape(name, one)),
        row("parameters", parameters, n ? `${fixed((100 * n * times) / total, 1)} %` : ""))),
      h("p", {}, "In the book: ", chapter(box, links)),
    ];
  }

  /** What is open, in words. @param {Box|undefined} box */
  function sentence(box, sizes, total, name) {
    if (!box) return `${name}: ${whole(total)} parameters in ${whole(sizes.L)} blocks of ${whole(sizes.H)} heads. Open a box to look inside.`;
    const n = count(box, sizes), times = copies(box, sizes);
    const share = n ? `${whole(n * times)} of ${whole(total)} parameters` : `none of the ${whole(total)} parameters`;
    return `${box.name}: ${tuple(box.gives)} = ${numbers(box.gives, sizes)}. It holds ${share}${n && times > 1 ? `, ${whole(n)} in each of ${times} blocks` : ""}.`;
  }

  // The widget ------------------------------------------------------------------------------------

  const WIDE = 620, DIAGRAM = 364; // px
  const powers = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => 2 ** (from + i));

  GptEdu.widget("model", {
    async render(view) {
      const presets = view.get("presets");
      const stops = (trait, own) => {
        const known = Object.values(presets).map((words) => words[trait] ?? view.get(trait));
        return [...new Set([...own, ...known, view.get(trait)])].filter(Number.isFinite).sort((a, b) => a - b);
      };
      const slider = (trait, label, own) => view.slider(trait, { label, values: stops(trait, own), format: whole });
      view.on("change:preset", () => view.set(presets[view.get("preset")]));
      view.row(
        view.select("preset", { label: "Model", options: Object.keys(presets) }),
        view.select("position", { label: "position", options: ["learned", "sinusoidal", "rope", "none"] }),
        view.select("norm_position", { label: "norm", options: ["pre", "post"] }),
        view.select("mlp", { label: "mlp", options: Object.keys(BENDS) }),
      );
      view.add(h("div", { class: "gptedu-columns" }, [
        slider("batch_size", "B  texts", powers(0, 8)), slider("context_length", "T  tokens", powers(3, 13)), slider("d_model", "C  width", powers(4, 13)),
        slider("n_head", "H  heads", [1, 2, 3, 4, 6, 8, 16, 32]), slider("vocab_size", "V  vocabulary", [65, ...powers(7, 17)]), slider("n_layer", "L  blocks", [1, 2, 3, 4, 6, 8]),
      ]));
      const open = (id) => view.set({ opened: view.get("opened") === id ? "" : id });
      const card = h("div", { class: "gptedu-card" });
      let state;
      const picture = view.picture((width, colours) => {
        const { all, sizes, config, plan } = state;
        const label = `The model as a diagram: ${all.length} boxes from token ids to the next token`;
        return { height: plan.height, label, children: [
          ...roads(all, plan, config, colours),
          ...all.map((box) => drawBox(box, plan.places.get(box.id), sizes, view.get("opened"), colours, open)),
        ] };
      });
      picture.root.setAttribute("role", "group"); // its boxes are buttons
      picture.root.addEventListener("keydown", (event) => keys(event, view, open));
      const stage = h("div", { class: "gptedu-stage" }, picture.el, card);
      view.add(stage);
      view.status();
      view.menu();

      const show = () => {
        const words = Object.fromEntries(WORDS.map((word) => [word, view.get(word)]));
        const start = presets[view.get("preset")], changed = WORDS.filter((word) => words[word] !== start[word]);
        const shown = view.get("preset") === "own" ? WORDS : ["preset", ...changed];
        view.bound = new Set([...shown, "batch_size", "opened"]);
        let config, reason;
        try {
          config = GptEdu.gptConfig(words);
        } catch (error) {
          reason = `There is no such model: ${error.message}. The picture stays as it was.`;
          config = state?.config ?? GptEdu.gptConfig({});
        }
        const sizes = letters(config, view.get("batch_size")), all = boxes(config);
        const total = all.reduce((n, box) => n + count(box, sizes) * copies(box, sizes), 0);
        const box = all.find((one) => one.id === view.get("opened"));
        const room = view.el.clientWidth || 340, wide = room >= WIDE;
        picture.el.style.width = wide ? `${DIAGRAM}px` : "100%";
        card.hidden = !box;
        if (box) card.replaceChildren(...cardContent(box, sizes, total, view.get("links")));
        Object.assign(card.style, wide ? { left: `${DIAGRAM + 14}px`, right: "0" } : { left: "48px", right: "0" });
        const gap = box && !wide ? card.offsetHeight + 8 : 0;
        const plan = layout(all, wide ? DIAGRAM : room, { opened: view.get("opened"), gap });
        state = { all, sizes, config, plan };
        const held = picture.root.getRootNode().activeElement?.dataset?.box;
        picture.update();
        if (held) picture.root.querySelector(`[data-box="${held}"]`)?.focus({ preventScroll: true });
        if (box) {
          card.style.borderLeftColor = colourOf(box, view.palette());
          const { y, high } = plan.places.get(box.id);
          const top = wide ? Math.min(Math.max(0, y - 24), plan.height - card.offsetHeight) : y + high + 6;
          card.style.top = `${top}px`;
        }
        const name = changed.length ? `${view.get("preset")}, changed` : view.get("preset");
        view.line.style.minHeight = wide ? "3em" : "6em"; // nothing below moves
        view.say(reason ?? sentence(box, sizes, total, name));
      };
      await view.draw(show);
    },
  });

  /** Enter and space open a box, arrows go to the next, Escape closes. */
  function keys(event, view, open) {
    const id = event.target.dataset?.box;
    if (!id) return;
    const all = [...event.currentTarget.querySelectorAll("[data-box]")], here = all.indexOf(event.target);
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (step) all[Math.min(all.length - 1, Math.max(0, here + step))].focus();
    else if (event.key === "Enter" || event.key === " ") open(id);
    else if (event.key === "Escape") view.set({ opened: "" });
    else return;
    event.preventDefault();
  }

  GptEdu.modelMap = { boxes, letters, count, copies, product };
})((globalThis.GptEdu ||= {}));
