/* generation.js: the next-character laboratory. The model reads a text, gives every character a
 * chance, three filters reshape the chances, and one character is drawn and written down:
 *
 *   logits -> temperature -> top-k -> top-p -> softmax -> draw -> one more character
 *
 * The filters are those of Python's gptedu.sampling, and past the context the window drops its older
 * half, as in gptedu.generation. The draw at position n uses the seed's n-th number, so that a text is
 * a function of the prompt, the settings and the seed, wherever the reader stops on the way.
 */
(function (GptEdu) {
  "use strict";
  const { h, svg, softmax, visible, fixed } = GptEdu;

  /** @typedef {{temperature: number, top_k: number|null, top_p: number}} Settings */

  // The filters: logits -> logits ---------------------------------------------------------------

  /** Divide by t. At t = 0 the largest logit alone remains, the first of equal ones.
   * @param {Float64Array} logits @param {number} t */
  function temperature(logits, t) {
    if (!(t >= 0 && t < Infinity)) throw new Error(`temperature=${t} must be 0 (greedy) or a number above it`);
    if (t > 0) return logits.map((x) => x / t);
    const best = GptEdu.argmax(logits);
    return logits.map((_, i) => (i === best ? 0 : -Infinity));
  }

  /** Keep the k largest, and what ties with the k-th; null keeps all.
   * @param {Float64Array} logits @param {number|null} k */
  function topK(logits, k) {
    if (k === null) return logits;
    if (!(Number.isInteger(k) && k >= 1)) throw new Error(`top_k=${k} must be a whole number of at least 1`);
    const edge = logits.slice().sort()[Math.max(0, logits.length - k)];
    return logits.map((x) => (x < edge ? -Infinity : x));
  }

  /** Keep the most likely until their probabilities sum to p or more; 1 keeps all.
   * @param {Float64Array} logits @param {number} p */
  function topP(logits, p) {
    if (!(p > 0 && p <= 1)) throw new Error(`top_p=${p} must be above 0 and at most 1`);
    if (p === 1) return logits; // rounding could reach 1 before the last token
    const probability = softmax(logits), out = logits.slice();
    let sum = 0;
    for (const i of ranked(logits)) {
      sum += probability[i];
      if (sum - probability[i] >= p) out[i] = -Infinity;
    }
    return out;
  }

  /** Ids from the most to the least likely; equal ones in the order of their ids.
   * @param {Float64Array} logits @returns {number[]} */
  const ranked = (logits) =>
    [...logits.keys()].sort((a, b) => Number(logits[b] > logits[a]) - Number(logits[b] < logits[a]));

  /** The logits of the model, and after each filter in turn.
   * @param {Float64Array} logits @param {Settings} settings */
  function stages(logits, settings) {
    const heated = temperature(logits, settings.temperature);
    const few = topK(heated, settings.top_k);
    return [logits, heated, few, topP(few, settings.top_p)];
  }

  // The draw and the window -----------------------------------------------------------------------

  /** The n-th of the seed's even numbers, from 0 up to 1: mulberry32 can jump. */
  const evenNumber = (seed, n) => GptEdu.random((seed + Math.imul(n, 0x6d2b79f5)) >>> 0)();

  /** The token in whose share of the line from 0 to 1 the number u falls.
   * @param {Float64Array} probability @param {number} u */
  function draw(probability, u) {
    let sum = 0, last = 0;
    for (let i = 0; i < probability.length; i++) {
      if (probability[i] === 0) continue;
      sum += probability[i];
      last = i;
      if (u < sum) break;
    }
    return last;
  }

  /** Where the window on a text of so many tokens starts: it has dropped its older half so often. */
  function windowStart(length, contextLength) {
    const drop = Math.floor((contextLength + 1) / 2);
    return Math.ceil(Math.max(0, length - contextLength) / drop) * drop;
  }

  /** A function from ids to the logits after them. It keeps keys and values of what it has read, and
   * reads only what is new; a newer question stops the one before.
   * @param {any} model @returns {(ids: number[]) => Promise<Float64Array>} */
  function reader(model) {
    const cache = new GptEdu.KVCache(model.config);
    let held = []; // the ids whose keys and values are in the cache
    let asked = { key: "", logits: Promise.resolve(new Float64Array()), stop: new AbortController() };
    const read = async (ids, signal) => {
      const window = ids.slice(windowStart(ids.length, model.config.context_length));
      let same = 0;
      while (same < window.length - 1 && window[same] === held[same]) same++;
      held = window.slice(0, (cache.length = same));
      const all = await model.run(window.slice(same), { cache, signal });
      held = window;
      const logits = Float64Array.from(all.slice(-model.config.vocab_size));
      if (logits.some(Number.isNaN)) throw new Error("the model's logits are NaN; its training has diverged, try a smaller lr");
      return logits;
    };
    return (ids) => {
      const key = ids.join();
      if (key === asked.key) return asked.logits;
      asked.stop.abort();
      const stop = new AbortController();
      asked = { key, stop, logits: read(ids, stop.signal) };
      return asked.logits;
    };
  }

  GptEdu.sampling = { temperature, topK, topP, ranked, stages, evenNumber, draw, windowStart, reader };

  // What the picture shows --------------------------------------------------------------------------

  /** @typedef {{id: number|null, count: number, left: number, chances: number[], removed: number}} Row
   *   id: null for the row of all others; count: tokens in it; left: of them after the filters;
   *   removed: the stage that took the last of them out, or 0 */

  /** The likeliest tokens, a row each, and all others in one more.
   * @param {Float64Array[]} logits  stage by stage @param {number} room @returns {Row[]} */
  function tableRows(logits, room) {
    const order = ranked(logits[0]), chances = logits.map((stage) => softmax(stage));
    const shown = order.length <= room ? order.length : room - 1;
    const row = (ids, id) => ({
      id,
      count: ids.length,
      left: ids.filter((i) => logits[3][i] > -Infinity).length,
      chances: chances.map((stage) => ids.reduce((sum, i) => sum + stage[i], 0)),
      removed: Math.max(0, logits.findIndex((stage) => ids.every((i) => stage[i] === -Infinity))),
    });
    const rows = order.slice(0, shown).map((id) => row([id], id));
    return shown < order.length ? [...rows, row(order.slice(shown), null)] : rows;
  }

  const percent = (p) => `${fixed(100 * p, 1)}%`;
  /** A token as a reader can see and read it; a long one is cut. */
  const seen = (token) => {
    const signs = [...visible(token)];
    return signs.length > 12 ? `${signs.slice(0, 11).join("")}…` : signs.join("");
  };
  const count = (n, unit) => `${n.toLocaleString("en")} ${unit}${n === 1 ? "" : "s"}`;

  const ROW = 21, TOP = 40, GLYPH = 7.3, NUMBER = 36; // px

  /** What the longest bar stands for: few steps, so that it seldom changes. */
  const scaleOf = (rows) => {
    const highest = Math.max(...rows.flatMap((row) => row.chances));
    return [0.1, 0.25, 0.5].find((end) => highest <= end) ?? 1;
  };

  let pictures = 0;

  /** The chances as bars: a row for each token, a column for each stage.
   * @param {{rows: Row[], names: string[], headings: string[][], next: number, cursor: number|null}} table
   * @param {number} width @param {any} colours */
  function bars({ rows, names, headings, next, cursor }, width, colours) {
    const left = 16 + GLYPH * Math.max(...names.map((name) => [...name].length)) + 8;
    const column = (width - left) / 4, room = (column - NUMBER - 10) / scaleOf(rows);
    const hatch = `gptedu-removed-${++pictures}`, blue = colours.probability(0.62);
    const text = (x, y, words, more) => svg("text", { x, y, ...more }, words);
    const out = [
      svg("defs", {}, svg("pattern", { id: hatch, width: 4, height: 4, patternUnits: "userSpaceOnUse" },
        svg("path", { class: "gptedu-hatch", d: "M-1 5L5 -1M-1 1L1 -1M3 5L5 3" }))),
    ];
    headings.forEach(([name, value], stage) => {
      const x = left + stage * column;
      out.push(text(x, 13, name, { class: width < 480 ? "gptedu-number" : null }), text(x, 29, value, { class: "gptedu-number gptedu-muted" }));
      out.push(svg("path", { d: `M${x} ${TOP - 3}v${ROW * rows.length + 2}`, stroke: colours.rule }));
    });
    rows.forEach(({ chances, removed }, i) => {
      const y = TOP + i * ROW, base = y + 14.5, own = names[i];
      if (i === cursor) out.push(svg("rect", { class: "gptedu-cursor", x: 1.5, y: y - 2, width: width - 3, height: ROW, rx: 3 }));
      if (i === next) out.push(svg("path", { d: `M3 ${y + 4.5}l8 5.5l-8 5.5z`, fill: colours.accent }));
      out.push(text(16, base, own, { class: rows[i].id === null ? "gptedu-muted" : "gptedu-token" }));
      chances.forEach((p, stage) => {
        const x = left + stage * column, gone = removed && stage >= removed;
        if (gone && stage > removed) return;
        const size = Math.max(0.75, room * (gone ? chances[stage - 1] : p));
        const number = { class: `gptedu-number${gone ? " gptedu-muted" : ""}`, x: x + column - 12, "text-anchor": "end" };
        const bar = { x: x + 0.5, y: y + 4.5, width: size, height: ROW - 10 };
        out.push(svg("rect", gone ? { ...bar, fill: `url(#${hatch})`, stroke: colours.rule } : { ...bar, fill: blue }));
        out.push(svg("text", { ...number, y: base }, gone ? "out" : fixed(100 * p, 1)));
      });
    });
    return out;
  }

  // The sheet that the text is written on -----------------------------------------------------------

  const FRESH = 10; // so many of the newest pieces fade in, each by itself

  /** A field of fixed height with its own scroll; `show` says what is on it. */
  function sheet() {
    const span = (name) => h("span", { class: `gptedu-${name}` });
    const parts = { pastPrompt: span("prompt gptedu-past"), prompt: span("prompt"), past: span("past"), text: h("span"), fresh: h("span") };
    const caret = h("span", { class: "gptedu-caret", "aria-hidden": "true" });
    const el = h("div", { class: "gptedu-sheet", role: "group", tabindex: 0, "aria-label": "The text" }, Object.values(parts), caret);
    let shown = "";
    const set = (name, text) => {
      if (parts[name].textContent !== text) parts[name].textContent = text;
    };
    /** `cut`: how many characters the model no longer sees. */
    const show = (prompt, written, cut) => {
      const follow = el.scrollHeight - el.scrollTop - el.clientHeight < 30; // not when the reader went back
      const added = written.slice(shown.length), grown = shown && written.startsWith(shown) && added.length < 20;
      if (!grown) parts.fresh.replaceChildren();
      else if (added) parts.fresh.append(h("span", { class: "gptedu-fresh" }, added));
      if (parts.fresh.childNodes.length > FRESH) parts.fresh.firstChild.remove();
      shown = written;
      const settled = written.slice(0, written.length - parts.fresh.textContent.length);
      const past = Math.max(0, cut - prompt.length);
      set("pastPrompt", prompt.slice(0, cut));
      set("prompt", prompt.slice(cut));
      set("past", settled.slice(0, past));
      set("text", settled.slice(past));
      if (follow) el.scrollTop = el.scrollHeight;
    };
    return { el, show };
  }

  // The widget --------------------------------------------------------------------------------------

  const RUN = 400, MOST = 4000; // tokens that one press writes; characters on the sheet
  const LONGEST_PROMPT = 2000;
  const PACE = 45, LINE_END = 180; // ms between two characters, and after a line
  const GLANCE = 320; // ms that a picture stands while the model writes: quicker is only flicker
  const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

  /** What the model reads first: the usable part of the prompt, and what was left out.
   * @returns {{text: string, notes: string[]}} */
  function openingOf(prompt, tokenizer) {
    const { text, dropped } = tokenizer.usable(prompt);
    const signs = [...text], notes = [];
    if (dropped.length) {
      const some = dropped.slice(0, 6).map((sign) => `“${visible(sign)}”`).join(" ");
      notes.push(`Left out: ${some}${dropped.length > 6 ? " and more" : ""}, which this model never met.`);
    }
    if (signs.length > LONGEST_PROMPT) notes.push(`Only the last ${count(LONGEST_PROMPT, "character")} of the prompt are kept.`);
    if (signs.length) return { text: signs.slice(-LONGEST_PROMPT).join(""), notes };
    const first = tokenizer.usable("\n").text || tokenizer.piece(0);
    return { text: first, notes: [...notes, `Without a prompt it starts after “${visible(first)}”.`] };
  }

  /** Values of the top-k slider, null (all) at its end; a large vocabulary in larger steps. */
  function kValues(vocabSize) {
    const values = [];
    for (let k = 1; k < vocabSize; k += Math.max(1, Math.floor(k / 32))) values.push(k);
    return [...values, null];
  }

  GptEdu.widget("generation", {
    async render(view) {
      const { model, tokenizer } = await view.load();
      const read = reader(model), V = tokenizer.vocabSize;
      const unit = tokenizer instanceof GptEdu.CharTokenizer ? "character" : "token";
      const settings = () => ({ temperature: view.get("temperature"), top_k: view.get("top_k"), top_p: view.get("top_p") });
      const opening = () => openingOf(view.get("prompt"), tokenizer);
      view.bound.add("prompt").add("written");

      // the text: its ids are remembered, because several lists of ids may stand for one text
      let told = { text: "", ids: [] };
      const idsNow = () => {
        const text = opening().text + tokenizer.usable(view.get("written")).text;
        if (told.text !== text) told = { text, ids: tokenizer.encode(text) };
        return told.ids;
      };
      const setIds = (ids) => {
        told = { text: tokenizer.decode(ids), ids };
        view.set({ written: told.text.slice(opening().text.length) });
      };
      const full = () => view.get("written").length >= MOST;
      const append = (id) => void (full() || setIds([...idsNow(), id]));
      const drawn = (logits, ids) => draw(softmax(stages(logits, settings())[3]), evenNumber(view.get("seed"), ids.length));
      const step = async () => {
        const ids = idsNow(), id = drawn(await read(ids), ids);
        append(id);
        return tokenizer.piece(id);
      };

      // the run: whoever holds the newest ticket writes
      let run = null;
      const stop = () => {
        run = null;
        main.textContent = "Write";
        view.line?.setAttribute("aria-live", "polite");
      };
      const write = async () => {
        if (run) return void (stop(), view.redraw());
        const mine = (run = {});
        main.textContent = "Stop";
        view.line.setAttribute("aria-live", "off"); // nobody wants to hear every letter
        try {
          for (let i = 0; i < RUN && run === mine && !full(); i++) {
            const token = await step();
            await wait(token.endsWith("\n") ? LINE_END : PACE);
          }
        } finally {
          if (run === mine) stop();
          view.redraw();
        }
      };
      view.onClose(() => (run = null));
      const halted = (action) => () => (stop(), action());
      const back = halted(() => {
        if (view.get("written")) setIds(idsNow().slice(0, -1));
      });
      const clear = halted(() => view.set({ written: "" }));
      view.on("change:prompt", clear);

      // what there is to see
      const main = view.button("Write", write, { class: "gptedu-button gptedu-primary" });
      const note = h("p", { class: "gptedu-note gptedu-line" });
      const paper = sheet();
      view.row(view.text("prompt", { label: "Prompt", rows: 2 }));
      view.add(h("div", { class: "gptedu-row gptedu-buttons" },
        main, view.button("Step", halted(step)), view.button("Back", back), view.button("Clear", clear)));
      view.add(paper.el, note);
      view.add(h("div", { class: "gptedu-row gptedu-sliders" },
        view.slider("temperature", { label: "Temperature", min: 0, max: 2, step: 0.05, digits: 2, marks: [1] }),
        view.slider("top_k", { label: "Top-k", values: kValues(V), format: (k) => (k === null ? "all" : String(k)) }),
        view.slider("top_p", { label: "Top-p", min: 0.01, max: 1, step: 0.01, format: (p) => (p === 1 ? "all" : fixed(p, 2)) }),
        view.slider("seed", { label: "Seed", min: 0, max: 99 }),
      ));

      let table = null, cursor = null; // the newest rows; the row that is pointed at
      const nameOf = ({ id, count: n }) => (id === null ? `+${n}` : seen(tokenizer.piece(id)));
      const chart = view.picture((width, colours) => {
        const { temperature: t, top_k: k, top_p: p } = settings();
        const headings = [
          ["model", "in %"],
          [width < 420 ? "temp." : "temperature", fixed(t, 2)],
          ["top-k", k ?? "all"],
          ["top-p", p === 1 ? "all" : fixed(p, 2)],
        ];
        const names = table.rows.map(nameOf);
        return {
          height: TOP + ROW * table.rows.length + 2,
          label: `Chances of the next ${unit}, before and after each filter. Arrow keys choose one, Enter writes it.`,
          children: bars({ ...table, names, headings, cursor }, width, colours),
        };
      });
      listen(chart.root, {
        point: (row) => {
          if (row === cursor || !table) return;
          cursor = row !== null && row < table.rows.length ? row : null;
          chart.update();
          view.say(words());
        },
        move: (by) => Math.min(table.rows.length - 1, Math.max(0, cursor === null ? 0 : cursor + by)),
        choose: view.guard((row) => {
          const id = table?.rows[row]?.id;
          if (id !== null && id !== undefined) halted(() => append(id))();
        }),
        back: view.guard(back),
      });
      view.add(chart.el);
      view.status();
      view.menu();

      const words = () => (cursor === null || run ? sentence() : rowWords(table.rows[cursor]));
      const sentence = () => {
        const { rows, next, drawn: id, ids } = table;
        const tail = seen(tokenizer.decode(ids.slice(-12)));
        const left = rows.reduce((sum, row) => sum + row.left, 0);
        const chance = percent(table.chance);
        const how = view.get("temperature") === 0 ? "Greedy choice is" : `Seed ${view.get("seed")} draws`;
        const most = `After “${tail}” the model's favourite is “${nameOf(rows[0])}” (${percent(rows[0].chances[0])}).`;
        const end = full() ? "The sheet is full: clear it to go on." : `${how} “${seen(tokenizer.piece(id))}” (▸\u00a0${chance})${next === rows.length - 1 && rows[next].id === null ? ", one of the others" : ""}.`;
        return `${most} The filters leave ${left} of ${count(V, unit)}. ${end}`;
      };
      const rowWords = (row) => {
        const { id, chances, removed } = row;
        const stage = ["from the model", "after temperature", "after top-k", "after top-p"];
        const stays = chances.slice(0, removed || 4);
        const path = stays.map((p, i) => `${percent(p)} ${stage[i]}`);
        const out = removed ? `, out ${stage[removed]}` : "";
        const what = id === null ? `The ${row.count} others together` : `“${nameOf(row)}”`;
        return `${what}: ${path.join(", ")}${out}. ${id === null ? `${row.left} of them are left.` : "Click or Enter writes it."}`;
      };

      let glance = { key: "", at: 0 };
      await view.draw(async () => {
        const ids = idsNow(), start = windowStart(ids.length, model.config.context_length);
        const { text, notes } = opening();
        paper.show(text, told.text.slice(text.length), tokenizer.decode(ids.slice(0, start)).length);
        const sight = start ? `the last ${ids.length - start} of ${count(ids.length, unit)}; grey is out of its sight` : `${ids.length === 1 ? "the one" : `all ${ids.length}`} ${ids.length === 1 ? unit : `${unit}s`}, and has room for ${model.config.context_length}`;
        const line = `The model sees ${sight}. ${notes.join(" ")}`;
        if (note.textContent !== line) note.textContent = line;
        const key = JSON.stringify([settings(), view.get("seed"), view.get("prompt"), view.palette().dark, chart.el.clientWidth]);
        if (run && key === glance.key && performance.now() - glance.at < GLANCE) return;
        const logits = await read(ids);
        const all = stages(logits, settings()), id = drawn(logits, ids), rows = tableRows(all, 12);
        const at = rows.findIndex((row) => row.id === id);
        table = { rows, ids, drawn: id, next: at < 0 ? rows.length - 1 : at, chance: softmax(all[3])[id] };
        glance = { key, at: performance.now() };
        chart.update();
        view.say(words());
      });
    },
  });

  /** Mouse, touch and keys on the rows of the chart. */
  function listen(root, { point, move, choose, back }) {
    const attributes = { role: "application", tabindex: 0, "data-lm-suppress-shortcuts": "true",
      "aria-roledescription": "bar chart, arrow keys choose a row, Enter writes it" };
    for (const [name, value] of Object.entries(attributes)) root.setAttribute(name, String(value));
    const rowAt = (event) => {
      const box = root.getBoundingClientRect();
      const row = Math.floor((event.clientY - box.top - TOP + 2) / ROW);
      return row < 0 ? null : row;
    };
    root.classList.add("gptedu-choices");
    root.addEventListener("pointermove", (event) => point(rowAt(event)));
    root.addEventListener("pointerleave", () => point(null));
    root.addEventListener("blur", () => point(null));
    root.addEventListener("click", (event) => choose(rowAt(event)));
    let row = null;
    const keys = {
      ArrowDown: () => point((row = move(1))),
      ArrowUp: () => point((row = move(-1))),
      Home: () => point((row = move(-Infinity))),
      End: () => point((row = move(Infinity))),
      Enter: () => choose(row),
      " ": () => choose(row),
      Backspace: back,
      Escape: () => point((row = null)),
    };
    root.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
    });
  }
})((globalThis.GptEdu ||= {}));
