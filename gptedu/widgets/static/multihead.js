/* multihead.js: the head explorer. Every head of every layer as a small map of what it reads; one of
 * them large; and, for one chosen token, its weights as tints on the text itself.
 *
 *   weights[t, s] = softmax over s <= t of q_t . k_s / sqrt(D)          a map, a head; each row sums to 1
 *
 * The weights are those of gpt.js's own forward pass, for the model after training or before it.
 */
(function (GptEdu) {
  "use strict";
  const { h, svg, visible, fixed, inkOn } = GptEdu;

  const LONGEST = 64; // tokens that the maps have room for

  // What a head does, in numbers and in words ---------------------------------------------------------

  /** @typedef {{distance: number, self: number, previous: number, first: number, evenness: number,
   *   link: {query: number, key: number, weight: number}|null}} Facts
   *   Means over all tokens but the first, which can read nothing but itself. `evenness` is the
   *   entropy as a share of what an even spread has; `link` the strongest from one token to another. */

  /** @param {ArrayLike<number>} weights (T,T) @param {number} T @returns {Facts} */
  function headFacts(weights, T) {
    const facts = { distance: 0, self: 0, previous: 0, first: 0, evenness: 0, link: null };
    for (let t = 1; t < T; t++) {
      const row = Array.from({ length: t + 1 }, (_, s) => weights[t * T + s]);
      facts.distance += row.reduce((sum, weight, s) => sum + weight * (t - s), 0) / (T - 1);
      facts.self += row[t] / (T - 1);
      facts.previous += row[t - 1] / (T - 1);
      facts.first += row[0] / (T - 1);
      facts.evenness += GptEdu.entropy(row) / Math.log(t + 1) / (T - 1);
      const key = GptEdu.argmax(row.slice(0, t));
      if (row[key] > (facts.link?.weight ?? 0)) facts.link = { query: t, key, weight: row[key] };
    }
    return facts;
  }

  /** @param {Facts} facts @param {string} unit */
  function verdict(facts, unit) {
    if (facts.previous > 0.5) return `mostly reads the previous ${unit}`;
    if (facts.self > 0.5) return `mostly reads the ${unit} itself`;
    if (facts.first > 0.5) return `mostly rests on the first ${unit}`;
    if (facts.evenness > 0.8) return "reads almost everything alike";
    if (facts.distance < 3) return `reads the last few ${unit}s`;
    return facts.distance < 6 ? "reads what stands near" : "reaches far back";
  }

  const percent = (p) => `${fixed(100 * p, 0)}%`;

  // Drawing -----------------------------------------------------------------------------------------

  const GLYPH = 7.3, LEVELS = 32; // px a sign; shades
  const longest = (names) => Math.max(...names.map((name) => [...name].length));

  /** A map as one path a shade, in units of a cell; equal neighbours are one piece.
   * @param {ArrayLike<number>} weights (T,T) @returns {Map<number, string>} shade -> path */
  function shades(weights, T) {
    /** @type {Map<number, string>} */
    const paths = new Map();
    for (let t = 0; t < T; t++) {
      for (let s = 0, from = 0; s <= t; s = from) {
        const level = Math.round(LEVELS * weights[t * T + s]);
        for (from = s + 1; from <= t && Math.round(LEVELS * weights[t * T + from]) === level;) from++;
        if (level) paths.set(level, `${paths.get(level) ?? ""}M${s} ${t}h${from - s}v1h${s - from}z`);
      }
    }
    return paths;
  }

  /** Where each small map of the grid stands, for the width that there is. */
  function gridLayout(width, layers, heads) {
    const left = 22, top = 40, pitch = Math.min(110, (width - left) / heads);
    const side = pitch - (pitch > 30 ? 8 : 2), words = side >= 46;
    const step = side + (words ? 22 : pitch - side);
    const at = (layer, head) => ({ x: left + head * pitch, y: top + layer * step });
    return { at, left, top, side, pitch, step, words, height: top + layers * step + 2 };
  }

  /** All heads.
   * @param {{shades: Map<number, string>, facts: Facts}[][]} maps  layer by layer, head by head */
  function grid(maps, T, layout, colours) {
    const { at, left, top, side, pitch, step, words } = layout;
    const text = (x, y, content, more) => svg("text", { x, y, ...more }, content);
    const quiet = { class: "gptedu-number gptedu-muted", "text-anchor": "middle" };
    const out = [text(left, 14, "All heads", { class: "gptedu-title" })];
    const every = Math.ceil(13 / Math.min(step, pitch)); // the names may not touch
    maps[0].forEach((_, j) => {
      if (j % every === 0) out.push(text(at(0, j).x + side / 2, top - 6, words ? `head ${j + 1}` : j + 1, quiet));
    });
    maps.forEach((heads, i) => {
      const y = top + i * step + side / 2;
      if (words) out.push(text(0, 0, `layer ${i + 1}`, { ...quiet, transform: `translate(12 ${y}) rotate(-90)` }));
      else if (i % every === 0) out.push(text(10, y + 4, i + 1, quiet));
      heads.forEach(({ shades: paths, facts }, j) => {
        const { x, y } = at(i, j);
        const cells = [...paths].map(([level, d]) => svg("path", { d, fill: colours.probability(level / LEVELS) }));
        out.push(svg("g", { transform: `translate(${x} ${y}) scale(${side / T})`, class: "gptedu-shade" }, cells));
        out.push(svg("rect", { class: "gptedu-frame", x, y, width: side, height: side }));
        if (words) out.push(text(x + side / 2, y + side + 12, `${fixed(facts.distance, 1)} back`, quiet));
      });
    });
    return out;
  }

  const LINE = 46; // px of one line of the text with its numbers

  /** Where each token of the text stands. */
  function lineLayout(width, names) {
    const cell = Math.max(20, GLYPH * longest(names) + 7), perLine = Math.max(1, Math.floor((width - 2) / cell));
    const at = (i) => ({ x: 1 + (i % perLine) * cell, y: 1 + Math.floor(i / perLine) * LINE });
    return { at, cell, perLine, height: Math.ceil(names.length / perLine) * LINE };
  }

  /** The text, tinted by what the query reads; what comes after the query it cannot see.
   * @param {string[]} names @param {ArrayLike<number>} row  weights of the query */
  function tintedText(names, row, query, { at, cell }, colours) {
    return names.flatMap((name, i) => {
      const { x, y } = at(i), unseen = i > query, fill = colours.probability(unseen ? 0 : row[i]);
      const frame = { x: x + 1, y: y + 2, width: cell - 2, height: 25, rx: 3 };
      const middle = { x: x + cell / 2, "text-anchor": "middle" };
      const out = [];
      if (!unseen) out.push(svg("rect", { ...frame, fill, stroke: colours.rule }));
      if (i === query) out.push(svg("rect", { ...frame, fill: "none", stroke: colours.query, "stroke-width": 2.5 }));
      const ink = unseen ? colours.muted : inkOn(fill);
      out.push(svg("text", { class: "gptedu-token", fill: ink, ...middle, y: y + 19 }, name));
      const share = Math.round(100 * row[i]);
      if (!unseen && share) out.push(svg("text", { class: "gptedu-number gptedu-muted", ...middle, y: y + 40 }, share));
      return out;
    });
  }

  // Choosing in a picture -----------------------------------------------------------------------------

  const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
    Home: [0, -Infinity], End: [0, Infinity] };

  /** Clicks and arrow keys on a picture: `click(x, y)` in its own px, `step(rows, columns)`. */
  function listen(root, kind, click, step) {
    const attributes = { role: "application", tabindex: 0, "data-lm-suppress-shortcuts": "true", "aria-roledescription": kind };
    for (const [name, value] of Object.entries(attributes)) root.setAttribute(name, String(value));
    root.classList.add("gptedu-choices");
    root.addEventListener("click", (event) => {
      const box = root.getBoundingClientRect();
      click(event.clientX - box.left, event.clientY - box.top);
    });
    root.addEventListener("keydown", (event) => {
      if (!STEPS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      step(...STEPS[event.key]);
    });
  }

  const within = (x, n) => Math.min(n - 1, Math.max(0, x));

  /** The ids of what can be read of a text, and what to say about the rest. */
  function readable(text, tokenizer, unit, room) {
    const { text: known, dropped } = tokenizer.usable(text.slice(0, 20000)), notes = [];
    const all = tokenizer.encode(known || tokenizer.usable("\n").text || tokenizer.piece(0));
    if (!known) notes.push(`Nothing to read yet: here is a single ${unit}.`);
    if (dropped.length) {
      const some = dropped.slice(0, 6).map((sign) => `“${visible(sign)}”`).join(" ");
      notes.push(`Left out: ${some}${dropped.length > 6 ? " and more" : ""}, which this model never met.`);
    }
    if (all.length > room) notes.push(`Only the first ${room} of ${all.length.toLocaleString("en")} ${unit}s are shown.`);
    return { ids: all.slice(0, room), notes };
  }

  GptEdu.heads = { headFacts, verdict, shades };

  GptEdu.widget("multihead", {
    async render(view) {
      const { model, tokenizer, untrained } = await view.load();
      const { n_layer: L, n_head: H, context_length } = model.config;
      const unit = tokenizer instanceof GptEdu.CharTokenizer ? "character" : "token";
      const room = Math.min(LONGEST, context_length);
      const chosen = () => [within(view.get("layer") - 1, L), within(view.get("head") - 1, H)];
      const choose = (layer, head) => view.set({ layer: within(layer, L) + 1, head: within(head, H) + 1 });

      /** @type {{key: string, ids: number[], names: string[], attention: Float32Array[], maps: any[][]}} */
      let seen = { key: "", ids: [], names: [], attention: [], maps: [] };
      let peek = null; // what is pointed at: { row } in the text, a cell in the large map
      const T = () => seen.ids.length;
      const weights = () => {
        const [layer, head] = chosen(), size = T() ** 2;
        return seen.attention[layer].subarray(head * size, (head + 1) * size);
      };
      const query = () => peek?.row ?? within((view.get("query") ?? Infinity) - 1, T());
      const rowOf = (t) => weights().subarray(t * T(), (t + 1) * T());

      view.row(view.text("text", { label: "Text", rows: 2 }));
      const weightsOf = [[true, "after training"], [false, "before training"]];
      view.row(view.select("trained", { label: "Weights", options: weightsOf }));
      for (const trait of ["layer", "head", "query"]) view.bound.add(trait);
      const note = h("p", { class: "gptedu-note gptedu-line" });

      const line = view.picture((width, colours) => {
        const layout = lineLayout(width, seen.names), t = query();
        return {
          height: layout.height,
          label: `The text, tinted by what ${place(t)} reads. Arrow keys choose another ${unit}.`,
          children: tintedText(seen.names, rowOf(t), t, layout, colours),
        };
      });
      const all = view.picture((width, colours) => {
        const layout = gridLayout(width, L, H);
        return { height: layout.height, label: "", children: [...grid(seen.maps, T(), layout, colours), frame] };
      });
      const frame = svg("rect", { class: "gptedu-cursor", rx: 2 });
      const markChosen = (layer, head) => {
        const { at, side } = gridLayout(width, L, H), { x, y } = at(layer, head);
        const box = { x: x - 2, y: y - 2, width: side + 4, height: side + 4 };
        for (const [name, value] of Object.entries(box)) frame.setAttribute(name, String(value));
        const label = `${L} layers of ${H} heads. Chosen: layer ${layer + 1}, head ${head + 1}. Arrow keys choose another.`;
        all.root.setAttribute("aria-label", label);
      };
      let painted = "", width = 0; // the grid is painted anew only where it would look new
      const map = view.heatmap({
        title: "Layer 1, head 1",
        largest: 400, // a short text fills the same room
        onCell: (cell) => point(cell),
      });
      const point = (place) => {
        peek = place;
        if (peek?.column === undefined) rest();
        line.update();
        view.say(words());
      };
      /** Where the cursor of the large map stands by itself: at what the query reads most. */
      const rest = () => map.select([query(), GptEdu.argmax(rowOf(query()))]);

      const tokenAt = (x, y) => {
        const { cell, perLine } = lineLayout(line.el.clientWidth, seen.names);
        const i = Math.floor(y / LINE) * perLine + Math.min(perLine - 1, Math.floor(x / cell));
        return i < T() ? i : query();
      };
      const chooseQuery = (t) => ((peek = null), view.set({ query: within(t, T()) + 1 }));
      listen(line.root, "text, arrow keys choose the reading token", (x, y) => chooseQuery(tokenAt(x, y)), (rows, columns) => {
        const { perLine } = lineLayout(line.el.clientWidth, seen.names);
        chooseQuery(query() + rows * perLine + columns);
      });
      line.root.addEventListener("pointermove", (event) => {
        const box = line.root.getBoundingClientRect();
        const row = tokenAt(event.clientX - box.left, event.clientY - box.top);
        if (row !== query()) point({ row });
      });
      line.root.addEventListener("pointerleave", () => peek && point(null));
      listen(all.root, "grid of maps, arrow keys choose a head", (x, y) => {
        const { left, top, pitch, step } = gridLayout(width, L, H);
        const layer = Math.floor((y - top) / step), head = Math.floor((x - left) / pitch);
        if (layer >= 0 && layer < L && head >= 0 && head < H) choose(layer, head);
      }, (rows, columns) => choose(chosen()[0] + rows, chosen()[1] + columns));
      map.root.addEventListener("click", () => peek && view.set({ query: peek.row + 1 }));

      view.add(note, line.el, h("div", { class: "gptedu-beside" }, all.el, map.el));
      view.status();
      view.menu();

      const place = (t) => `“${seen.names[t]}” (${t + 1})`;
      const words = () => {
        if (!peek) return sentence();
        const { row, column, value, hidden } = peek, most = GptEdu.argmax(rowOf(row));
        if (column === undefined) return `${place(row)} reads ${place(most)} most, with ${percent(rowOf(row)[most])} of its weight.`;
        if (hidden) return `${place(row)} cannot read ${place(column)}: it comes later.`;
        return `${place(row)} reads ${place(column)} with a weight of ${fixed(value, 3)}.`;
      };
      const sentence = () => {
        const [layer, head] = chosen(), { facts } = seen.maps[layer][head];
        const who = `${view.get("trained") ? "L" : "Before training, l"}ayer ${layer + 1}, head ${head + 1}`;
        if (T() < 2) return `${who} has one ${unit} only, and reads that.`;
        const { link } = facts;
        const shares = `${percent(facts.previous)} of its weight goes to the previous ${unit}, ${percent(facts.self)} to the ${unit} itself, ${percent(facts.first)} to the first`;
        const strongest = link ? ` Strongest link: ${place(link.query)} reads ${place(link.key)}, ${percent(link.weight)}.` : "";
        return `${who} ${verdict(facts, unit)}. It looks back ${fixed(facts.distance, 1)} ${unit}s on average: ${shares}.${strongest}`;
      };

      await view.draw(view.latest(async (signal) => {
        const trained = view.get("trained"), { ids, notes } = readable(view.get("text"), tokenizer, unit, room);
        const key = `${trained} ${ids}`;
        if (key !== seen.key) {
          const { attention } = await (trained ? model : untrained(view.get("seed"))).trace(ids, { signal });
          const heads = (layer, i) => attention[layer].subarray(i * ids.length ** 2, (i + 1) * ids.length ** 2);
          const read = (layer, i) => ({ shades: shades(heads(layer, i), ids.length), facts: headFacts(heads(layer, i), ids.length) });
          const maps = attention.map((_, layer) => Array.from({ length: H }, (__, i) => read(layer, i)));
          const names = ids.map((id) => visible(tokenizer.piece(id)));
          [seen, peek] = [{ key, ids, names, attention, maps }, null];
        }
        const told = notes.join(" ") || "In each map a row reads and a column is read; every row sums to 1.";
        if (note.textContent !== told) note.textContent = told;
        const [layer, head] = chosen();
        width = all.el.clientWidth || 340;
        const look = [key, width, view.palette().dark].join();
        map.options.title = `Layer ${layer + 1}, head ${head + 1}`;
        map.update({ values: weights(), rowNames: seen.names, columnNames: seen.names, hidden: (row, column) => column > row });
        if (!peek) rest();
        line.update();
        if (look !== painted) all.update();
        painted = look;
        markChosen(layer, head);
        view.say(words());
      }));
    },
  });
})((globalThis.GptEdu ||= {}));
