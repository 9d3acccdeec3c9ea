/* The mask laboratory: scores, scaled, masked, softmax as four linked maps, and the sum behind a cell.
 *
 *   weights = softmax(mask(q k^T D^-power / temperature))
 *
 * Pure functions first: `vectorsOf`, `maySee`, `laboratory` (the numbers), `verdict` (the words).
 */
(function (GptEdu) {
  "use strict";

  const { h, svg, fixed, visible } = GptEdu;
  const LONGEST = 16; // positions
  const GAP = 6, SUMS = 36; // px: between maps, and for the row sums beside the last
  const signed = (x) => fixed(x).padStart(5, "\u2007"); // as wide with a minus as without

  /** @typedef {{names: string[], q: ArrayLike<number>, k: ArrayLike<number>, D: number}} Vectors */
  /** @typedef {{power: number, temperature: number, window: number, mask: string}} Settings */

  // Numbers ---------------------------------------------------------------------------------------

  /** A query and a key for each character: even numbers of spread 1, as Python's `vectors_of`.
   * @param {string[]} names @param {number} D @param {number} seed @returns {Vectors} */
  function vectorsOf(names, D, seed) {
    const rows = names.map((name) => {
      const next = GptEdu.random(seed * 2 ** 21 + name.codePointAt(0));
      return Array.from({ length: 2 * D }, () => (2 * next() - 1) * Math.sqrt(3));
    });
    const part = (from) => rows.flatMap((row) => row.slice(from, from + D));
    return { names, q: part(0), k: part(D), D };
  }

  /** What the mask says: may query i look at key j?
   * @param {Settings} settings @returns {(i: number, j: number) => boolean} */
  function maySee({ mask, window }) {
    const near = (i, j) => i - j < window;
    const causal = (i, j) => j <= i && near(i, j);
    if (mask === "off") return near;
    return mask === "inverted" ? (i, j) => !causal(i, j) : causal;
  }

  /** All numbers of the four maps. `enters(i, j)`: key j stands in the softmax of query i.
   * @param {Vectors} vectors @param {Settings} settings */
  function laboratory({ names, q, k, D }, settings) {
    const T = names.length, late = settings.mask === "after";
    const factor = D ** -settings.power;
    const scores = new Float64Array(T * T);
    for (let i = 0; i < T; i++) {
      for (let j = 0; j < T; j++) {
        for (let d = 0; d < D; d++) scores[i * T + j] += q[i * D + d] * k[j * D + d];
      }
    }
    const scaled = scores.map((score) => (score * factor) / settings.temperature);
    const seen = maySee(settings), enters = (i, j) => late || seen(i, j);
    const open = scaled.map((x, at) => (enters(Math.floor(at / T), at % T) ? x : -Infinity));
    const rows = names.map((_, i) => GptEdu.softmax(open.subarray(i * T, (i + 1) * T)));
    const shares = Float64Array.from(rows.flatMap((row) => [...row])); // before a late mask
    const weights = shares.map((w, at) => (late && !seen(Math.floor(at / T), at % T) ? 0 : w));
    const sums = names.map((_, i) => weights.subarray(i * T, (i + 1) * T).reduce((a, b) => a + b, 0));
    return { names, q, k, T, D, factor, ...settings, late, scores, scaled, open, shares, weights, sums, seen, enters };
  }

  // Words -----------------------------------------------------------------------------------------

  const quoted = (name) => `“${visible(name)}”`;
  /** e^x, also where it is too large or too small for a plain number. */
  function powerOfE(x) {
    if (x === -Infinity) return "0";
    const digits = x / Math.LN10, whole = Math.floor(digits);
    return digits > -2 && digits < 4 ? fixed(Math.exp(x)) : `${fixed(10 ** (digits - whole), 1)}e${whole}`.replace("-", "−");
  }
  const logSum = (row) => {
    const most = Math.max(...row);
    return most === -Infinity ? most : most + Math.log(row.reduce((sum, x) => sum + Math.exp(x - most), 0));
  };

  /** Does the future leak, and through which door?
   * @param {ReturnType<typeof laboratory>} lab @returns {{leaks: boolean, words: string}} */
  function verdict({ T, mask, weights, sums, names, window, enters }) {
    const all = names.map((_, i) => i);
    const later = (i) => all.slice(i + 1);
    const leaking = all.filter((i) => later(i).some((j) => enters(i, j)));
    const empty = all.filter((i) => !all.some((j) => enters(i, j)));
    const blind = empty.length ? ` Query ${empty.join(", ")} sees no key: every score is −∞, and 0 / 0 is NaN.` : "";
    if (!leaking.length) {
      const back = window < T ? ` Each query sees ${window} positions at most, itself included.` : "";
      return { leaks: false, words: `Nothing leaks: no weight depends on a later key.${back}${blind || " Each row sums to 1."}` };
    }
    const future = (i) => later(i).reduce((sum, j) => sum + weights[i * T + j], 0);
    const worst = leaking.reduce((best, i) => (future(i) > future(best) ? i : best));
    const share = `Query ${worst} ${quoted(names[worst])} gives ${fixed(future(worst))} of its weight to later keys.`;
    const reason = {
      off: `no mask hides it. ${share}`,
      inverted: `the mask is upside down. ${share}`,
      after: `the mask comes after the softmax, so each denominator still holds later keys. Rows sum to as little as ${fixed(Math.min(...sums))}.`,
    }[mask];
    return { leaks: true, words: `The future leaks: ${reason}${blind}` };
  }

  function placeWords({ window }, i, j) {
    if (i === j) return `key ${j} is the query's own position`;
    if (j > i) return `key ${j} comes after query ${i}`;
    return i - j < window ? `key ${j} comes before query ${i}` : `key ${j} lies ${i - j} back, outside the window`;
  }

  /** The four lines that make one number, each a label and its parts.
   * @param {ReturnType<typeof laboratory>} lab @param {number} i @param {number} j @returns {[string, any[]][]} */
  function derivation(lab, i, j) {
    const { names, T, D, late, scores, scaled, open, shares, weights, seen, enters, factor, power, temperature } = lab;
    const at = i * T + j, hidden = !seen(i, j);
    const who = `query ${i} ${quoted(names[i])}, key ${j} ${quoted(names[j])}: `;
    const rule = `${placeWords(lab, i, j)}: ${hidden ? "hidden" : "open"}`;
    const score = [who, ...terms(lab, i, j), " = ", h("b", {}, fixed(scores[at]))];
    const heat = temperature === 1 ? "" : ` / ${fixed(temperature, 1)}`;
    const root = power === 0.5 ? ` (1/√${D})` : "";
    const scale = [`${fixed(scores[at])} × ${fixed(factor, 3)}${root}${heat} = `, h("b", {}, fixed(scaled[at]))];
    const row = Array.from(open.subarray(i * T, (i + 1) * T));
    const parts = row.map((x, n) => [n ? " + " : "", h(n === j ? "b" : "span", {}, powerOfE(x))]);
    const top = enters(i, j) ? `e^${fixed(scaled[at])}` : "e^−∞";
    const total = `${powerOfE(open[at])} / ${powerOfE(logSum(row))} = `;
    const share = [`${top} / (`, parts, `) = ${total}`, h("b", {}, fixed(shares[at]))];
    if (late) {
      return [["1 score", score], ["2 scaled", scale], ["3 softmax", share],
        ["4 masked", [`${rule}${hidden ? ", set to " : ", stays "}`, h("b", {}, fixed(weights[at]))]]];
    }
    return [["1 score", score], ["2 scaled", scale],
      ["3 masked", [`${rule}${hidden ? ", becomes " : ", stays "}`, h("b", {}, fixed(open[at]))]], ["4 softmax", share]];
  }

  /** q·k term by term; the middle is left out where there are many. Blue line: query, orange: key. */
  function terms({ q, k, D }, i, j) {
    const number = (role, x) => h("span", { class: `gptedu-${role}-number` }, signed(x));
    const term = (d) => [number("query", q[i * D + d]), "·", number("key", k[j * D + d])];
    const shown = D <= 8 ? [...Array(D).keys()] : [0, 1, 2, D - 1];
    return shown.map((d, n) => [n ? (d - shown[n - 1] > 1 ? ` + … ${D - 4} more … + ` : " + ") : "", term(d)]);
  }

  // Where vectors come from -------------------------------------------------------------------------

  const cutNote = (shown, all) => (shown < all ? ` Shown: the first ${shown} of ${all.toLocaleString("en")} tokens.` : "");

  /** The vectors that the controls ask for, and what to say about the text.
   * @returns {(signal: AbortSignal) => Promise<Vectors & {note: string}>} */
  function source(view, onModel) {
    let known = { key: "", named: null }; // the newest run of the model
    return async (signal) => {
      const limit = view.get("length");
      if (view.get("vectors") !== "model") {
        const all = [...view.get("text")];
        const shown = all.slice(0, limit);
        return { ...vectorsOf(shown, view.get("head_dim"), view.get("seed")), note: cutNote(shown.length, all.length) };
      }
      const { model, tokenizer, config } = await view.load();
      signal.throwIfAborted();
      onModel(config);
      const { text, dropped } = tokenizer.usable(view.get("text"));
      const all = tokenizer.encode(text), ids = all.slice(0, Math.min(limit, config.context_length));
      const missing = dropped.length ? ` The model does not know ${dropped.slice(0, 5).map(quoted).join(" ")}${dropped.length > 5 ? " …" : ""}.` : "";
      const names = ids.map((id) => tokenizer.piece(id)), D = config.head_dim;
      const note = missing + cutNote(ids.length, all.length);
      if (!ids.length) return { names, q: [], k: [], D, note };
      const key = String(ids);
      if (known.key !== key) known = { key, named: (await model.trace(ids, { signal })).named };
      return { names, D, note, ...headOf(known.named, config, view.get("layer"), view.get("head"), ids.length * D) };
    };
  }

  /** Queries and keys of one head, counted from 1. */
  function headOf(named, config, layer, head, size) {
    const block = Math.min(layer, config.n_layer) - 1, one = Math.min(head, config.n_head) - 1;
    const part = (word, at) => named.get(`blocks.${block}.attention.${word}`).data.subarray(at * size, (at + 1) * size);
    return { q: part("query", one), k: part("key", Math.floor((one * config.n_kv_head) / config.n_head)) };
  }

  // Drawing -----------------------------------------------------------------------------------------

  /** The row sums beside the last map, a number for each row that there is room for. */
  function rowSums(view, map) {
    const picture = view.picture((_, colours) => {
      const { top, size, height } = map.layout, sums = picture.sums;
      const step = Math.max(1, Math.ceil(13 / size));
      const children = [svg("text", { class: "gptedu-axis", x: 2, y: top - 6 }, "sum")];
      for (let i = 0; i < sums.length; i += step) {
        const wrong = !(Math.abs(sums[i] - 1) < 5e-7);
        const look = wrong ? { fill: colours.alarm, "font-weight": 600 } : {};
        children.push(svg("text", { class: "gptedu-number", x: 2, y: top + (i + 0.5) * size + 4, ...look }, fixed(sums[i])));
      }
      return { height, children, label: `Row sums: ${sums.map((sum) => fixed(sum)).join(", ")}` };
    });
    picture.el.style.width = `${SUMS}px`;
    return picture;
  }

  /** The four maps in one row, or two by two; each with the same size of cell. */
  function maps(view, onCell) {
    const all = [0, 1, 2, 3].map((n) => view.heatmap({ title: String(n + 1), digits: 2, onCell: () => onCell(all[n]) }));
    const sums = rowSums(view, all[3]);
    const el = h("div", { class: "gptedu-lab" }, all.slice(0, 3).map((map) => map.el),
      h("div", { class: "gptedu-lab-last" }, all[3].el, sums.el));
    const update = (lab) => {
      const room = el.clientWidth || 340, columns = room < 600 ? 2 : 4;
      const width = Math.floor((room - SUMS - (columns - 1) * GAP) / columns);
      for (const map of all) map.el.style.width = `${width}px`;
      const { names, T, late, scores, scaled, shares, weights, seen, factor } = lab;
      const largest = (values) => values.reduce((most, x) => Math.max(most, Math.abs(x)), 0) || 1;
      // Scaling shows as paler colours, but by the root only: else a model's scaled scores were white.
      const before = largest(scores), after = Math.max(largest(scaled), Math.sqrt(before * largest(scaled)));
      const masked = (i, j) => !seen(i, j), blank = (i, j) => masked(i, j) && !Number.isNaN(weights[i * T + j]);
      const show = (n, title, kind, values, hidden, limit = kind === "signed" ? after : 1) => {
        Object.assign(all[n].options, { title: `${n + 1} ${title}`, kind });
        all[n].update({ values, rowNames: names, columnNames: names, hidden, limit });
      };
      show(0, "scores q·k", "signed", scores, undefined, before);
      show(1, `${columns === 4 ? "scaled " : ""}× ${fixed(factor, 3)}`, "signed", scaled);
      if (late) show(2, "softmax", "probability", shares);
      else show(2, lab.mask === "off" && lab.window >= T ? "no mask" : "masked", "signed", scaled, masked);
      show(3, late ? "masked" : "softmax", "probability", weights, blank);
      sums.sums = lab.sums;
      sums.update();
    };
    return { el, all, update };
  }

  /** Room once taken is kept, so that the page below stays where it is. */
  function keepHeight(el) {
    const width = el.clientWidth;
    if (el.keptFor !== width) el.style.minHeight = "";
    el.keptFor = width;
    if (el.offsetHeight > parseFloat(el.style.minHeight || "0")) el.style.minHeight = `${el.offsetHeight}px`;
  }

  function controls(view) {
    const known = { 0: "none", 0.5: "1/√D", 1: "1/D" };
    const scale = (power) => (known[power] ?? `D^−${fixed(power)}`).padStart(7, "\u2007");
    const window = (keys) => (keys >= LONGEST ? "all" : `${keys}`);
    const fresh = view.button("New vectors", () => view.set({ seed: (view.get("seed") % 999) + 1 }));
    view.bound.add("seed");
    const random = [
      view.select("head_dim", { label: "Head size D", options: [4, 16, 64].map((D) => [D, `${D}`]) }),
      fresh,
    ];
    const own = h("div", { class: "gptedu-lab-own" });
    view.row(view.text("text", { label: "Text" }));
    view.row(
      view.select("mask", { label: "Mask", options: [["causal", "causal"], ["off", "off"], ["inverted", "inverted"], ["after", "after the softmax"]] }),
      view.slider("length", { label: "Length T", min: 1, max: LONGEST }),
      view.slider("window", { label: "Window", min: 1, max: LONGEST, format: window }),
      view.slider("power", { label: "Scale", step: 0.05, marks: [0.5], format: scale }),
      view.slider("temperature", { label: "Temperature", min: 0.1, max: 3, step: 0.1, digits: 1, marks: [1] }),
    );
    view.row(view.select("vectors", { label: "Queries and keys", options: [["random", "random vectors"], ["model", "of the model"]] }), random, own);
    const choose = () => {
      const isModel = view.get("vectors") === "model";
      for (const el of random) el.style.display = isModel ? "none" : "";
      own.style.display = isModel ? "" : "none";
    };
    const onModel = ({ n_layer, n_head }) => {
      if (own.childElementCount) return;
      own.append(view.slider("layer", { label: "Layer", min: 1, max: n_layer }), view.slider("head", { label: "Head", min: 1, max: n_head }));
    };
    return { choose, onModel };
  }

  GptEdu.widget("attention", {
    async render(view) {
      const { choose, onModel } = controls(view);
      const vectors = source(view, onModel);
      let lab = laboratory(vectorsOf([], 1, 0), { power: 0, temperature: 1, window: 1, mask: "off" });

      /** The cell under the pointer, or else the one that was chosen last. */
      const shown = (map) => map?.cell ?? view.get("cell").map((n) => Math.max(0, Math.min(n, lab.T - 1)));
      const explain = (map) => {
        const [i, j] = shown(map);
        for (const one of four.all) one.select([i, j]);
        const lines = lab.T ? derivation(lab, i, j) : [];
        sum.replaceChildren(...lines.map(([label, parts]) => h("div", {}, h("dt", {}, label), h("dd", {}, parts))));
        keepHeight(sum);
      };
      const onCell = (map) => { // hovering shows a cell, a click or the arrow keys keep it
        const pinned = map.pinned;
        for (const one of four.all) one.pinned = pinned;
        if (pinned && String(pinned) === String(map.cell)) view.set({ cell: [...pinned] });
        explain(map);
      };
      const four = maps(view, onCell);
      const sum = h("dl", { class: "gptedu-derivation", "aria-live": "polite" });
      for (const map of four.all) map.root.addEventListener("click", () => onCell(map));
      view.bound.add("cell");
      view.add(four.el);
      view.status();
      view.add(sum);
      view.menu();

      const show = view.latest(async (signal) => {
        choose();
        const found = await vectors(signal);
        const [power, temperature, window, mask] = ["power", "temperature", "window", "mask"].map((trait) => view.get(trait));
        lab = laboratory(found, { power, temperature, window: window >= LONGEST ? Infinity : window, mask });
        four.update(lab);
        const { leaks, words } = verdict(lab);
        view.line.classList.toggle("gptedu-flag", leaks);
        view.say(lab.T ? `${leaks ? "⚑ " : ""}${words}${found.note}` : `There is no text to look at: type some.${found.note}`);
        keepHeight(view.line);
        explain();
      });
      await view.draw(show);
    },
  });

  GptEdu.maskLaboratory = { vectorsOf, laboratory, verdict }; // for the tests
})((globalThis.GptEdu ||= {}));
