/* The tokenizer explorer: own text as characters and as BPE tokens, one merge at a time.
 *
 * Every byte of the text keeps its place. A merge only joins two boxes, so nothing moves.
 * Pure functions first: `learn` (the training of BPE), `layout` (where each byte stands).
 */
(function (GptEdu) {
  "use strict";

  const { h, svg, fixed, visible } = GptEdu;
  const LONGEST = 200; // characters that are shown
  const MOST = 300; // merges that are learnt from the reader's own text
  const TILE = 24, BOX = 34, LINE = 88; // px: a byte's width, a box's height, from line to line
  const utf8 = new TextEncoder();

  // Numbers ---------------------------------------------------------------------------------------

  /** How often each pair of neighbours stands in the words, the most frequent first; of equals the
   * one with the smallest ids.
   * @param {number[][]} words @returns {{pair: [number, number], count: number}[]} */
  function pairCounts(words) {
    const counts = new Map();
    for (const ids of words) {
      for (let i = 1; i < ids.length; i++) {
        const key = `${ids[i - 1]},${ids[i]}`;
        const found = counts.get(key) ?? { pair: [ids[i - 1], ids[i]], count: 0 };
        counts.set(key, found);
        found.count++;
      }
    }
    return [...counts.values()].sort((a, b) => b.count - a.count || a.pair[0] - b.pair[0] || a.pair[1] - b.pair[1]);
  }

  /** The ids with `id` in place of the pair, from left to right. */
  function join(ids, [a, b], id) {
    const out = [];
    for (let i = 0; i < ids.length; i++) {
      const found = ids[i] === a && ids[i + 1] === b;
      out.push(found ? id : ids[i]);
      if (found) i++;
    }
    return out;
  }

  /** The training of BPE: merge the most frequent pair, again and again. Equal to Python's.
   * @param {string} text @param {number} most @returns {[number, number][]} */
  function learn(text, most = MOST) {
    let words = new GptEdu.BPETokenizer([]).merging(text)[0].words;
    /** @type {[number, number][]} */
    const merges = [];
    while (merges.length < most) {
      const [best] = pairCounts(words);
      if (!best) break;
      words = words.map((ids) => join(ids, best.pair, 256 + merges.length));
      merges.push(best.pair);
    }
    return merges;
  }

  /** Line and column of every byte: words stay whole where a line can hold them.
   * @param {number[]} lengths  of the words, in bytes @param {number} perLine
   * @returns {[number, number][]} */
  function layout(lengths, perLine) {
    const places = [];
    let line = 0, column = 0;
    for (const length of lengths) {
      if (column && column + length > perLine) [line, column] = [line + 1, 0];
      for (let i = 0; i < length; i++) {
        if (column === perLine) [line, column] = [line + 1, 0];
        places.push([line, column++]);
      }
    }
    return places;
  }

  /** A token's bytes as pieces that each stand on one line. */
  function pieces(places, start, length) {
    const out = [];
    for (let i = start; i < start + length; i++) {
      const last = out.at(-1);
      if (last && last.line === places[i][0]) last.length++;
      else out.push({ line: places[i][0], column: places[i][1], length: 1 });
    }
    return out;
  }

  /** What stands in a token's box: its text, or its bytes where they are no whole character. */
  function face(bpe, id) {
    const bytes = bpe.bytesOf(id), name = bpe.piece(id);
    const whole = utf8.encode(name).length === bytes.length;
    const hex = bytes.map((byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ");
    return { face: whole ? visible(name) : hex, length: bytes.length };
  }

  /** Everything the picture and the words need, for a text and a number of merges.
   * @param {string} text  without lone surrogates
   * @param {{bpe: any, characters: any, step: number}} given */
  function study(text, { bpe, characters, step }) {
    const all = bpe.merging(text); // the first is before any merge
    const used = all.filter(({ id }) => id === null || id < 256 + step);
    const now = used.at(-1);
    const symbols = [...text].map((name) => ({ name, id: characters.ids.get(name), face: visible(name), length: utf8.encode(name).length }));
    const tokens = now.words.flat().map((id) => ({ id, ...face(bpe, id), fresh: id === 255 + step }));
    return { bpe, characters, step, symbols, tokens, all, used, now, lengths: all[0].words.map((ids) => ids.length) };
  }

  // Words -----------------------------------------------------------------------------------------

  const quoted = (bpe, id) => `“${visible(bpe.piece(id))}”`;
  const times = (n) => (n === 1 ? "once" : n === 2 ? "twice" : `${n} times`);
  const several = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

  /** Which pair the last merge joined, and how often. */
  function mergeWords({ bpe, step, all }) {
    if (step === 0) return "No merge yet: every token is one byte.";
    const pair = bpe.merges[step - 1], id = 255 + step;
    const here = all.find((one) => one.id === id);
    const joined = `Merge ${step} joins ${quoted(bpe, pair[0])} and ${quoted(bpe, pair[1])} to ${quoted(bpe, id)} (id ${id})`;
    return here ? `${joined}: ${times(here.count)} in this text, outlined.` : `${joined}: not in this text.`;
  }

  function countWords({ symbols, tokens, step, characters }) {
    const unknown = symbols.filter(({ id }) => id === undefined).length;
    const gap = unknown ? `, ${unknown} without an id` : "";
    const each = tokens.length ? `, ${fixed(symbols.length / tokens.length, 1)} characters each` : "";
    return `${several(symbols.length, "character")} (vocabulary ${characters.vocabSize}${gap}); ${several(tokens.length, "BPE token")} (vocabulary ${256 + step}${each}).`;
  }

  /** Why this pair: where the tokenizer learns from this text, the counts that decide. */
  function pairWords({ bpe, now, step }, own) {
    if (!own) return step ? ["It was the most frequent pair of the text that the merges were learnt from."] : [];
    const next = pairCounts(now.words).slice(0, 5);
    if (!next.length) return ["No pair is left: every word is one token."];
    const words = next.map(({ pair, count }) => h("span", {}, `${pair.map((id) => quoted(bpe, id)).join(" ")} ${count}`));
    return ["Pairs by count, the first is merged next: ", words.map((word, n) => [n ? ", " : "", word])];
  }

  // Drawing -----------------------------------------------------------------------------------------

  /** One box, or what stands of it on one line. */
  function box({ line, column, length }, top, { fill, stroke, dash }) {
    const place = { x: column * TILE + 1.5, y: line * LINE + top, width: length * TILE - 3, height: BOX, rx: 3 };
    return svg("rect", { ...place, fill, stroke, "stroke-width": stroke ? 2 : null, "stroke-dasharray": dash });
  }

  /** Tokens as boxes with what they stand for and their ids; two tints, so that neighbours differ. */
  function track(list, places, top, look) {
    let start = 0;
    return list.flatMap((token, n) => {
      const runs = pieces(places, start, token.length), style = look(token, n);
      start += token.length;
      const longest = runs.reduce((a, b) => (b.length > a.length ? b : a));
      const x = (longest.column + longest.length / 2) * TILE, y = longest.line * LINE + top;
      const text = (dy, kind, words) => svg("text", { class: kind, fill: style.ink, x, y: y + dy, "text-anchor": "middle" }, words);
      const name = shorten(token.face, longest.length);
      return [...runs.map((run) => box(run, top, style)), text(14, "gptedu-token", name), text(28, "gptedu-number", token.id ?? "–")];
    });
  }

  /** What fits into so many tiles. */
  function shorten(name, tiles) {
    const signs = [...name], room = Math.floor((tiles * TILE - 4) / 7.3);
    return signs.length > room ? `${signs.slice(0, Math.max(1, room - 1)).join("")}…` : name;
  }

  /** Characters above, BPE tokens below, byte under byte. */
  function strips(view) {
    const picture = view.picture((width, colours) => {
      const { symbols, tokens, lengths } = picture.data;
      const places = layout(lengths, Math.max(1, Math.floor(width / TILE)));
      const tints = [0.1, 0.3].map((shade) => colours.probability(shade));
      const tint = (n) => ({ fill: tints[n % 2], ink: GptEdu.inkOn(tints[n % 2]) });
      const character = ({ id }, n) => (id === undefined ? { fill: "none", ink: colours.ink, stroke: colours.alarm, dash: "3 2" } : tint(n));
      const token = ({ fresh }, n) => ({ ...tint(n), stroke: fresh ? colours.accent : null });
      const lines = places.length ? places.at(-1)[0] + 1 : 1;
      return {
        height: lines * LINE,
        label: `${tokens.length} BPE tokens: ${tokens.slice(0, 60).map(({ face: text, id }) => `${text} ${id}`).join(", ")}`,
        children: [...track(symbols, places, 2, character), ...track(tokens, places, 4 + BOX, token)],
      };
    });
    return picture;
  }

  /** Tokens of this text against the number of merges: a longer vocabulary makes shorter texts. */
  function curve(view) {
    const picture = view.picture((width, colours) => {
      const { symbols, all, tokens, step, bpe } = picture.data;
      const most = all[0].words.flat().length || 1, end = bpe.merges.length || 1;
      const left = 36, right = width - 12, top = 38, bottom = 112;
      const x = (merges) => left + ((right - left) * merges) / end;
      const y = (count) => bottom - ((bottom - top) * count) / most;
      let path = `M${x(0)} ${y(most)}`, count = most;
      for (const one of all.slice(1)) path += `H${x(one.id - 255)}V${y((count -= one.count))}`;
      const level = y(symbols.length), late = step > end / 2;
      const text = (attributes, words) => svg("text", { class: "gptedu-number", ...attributes }, words);
      return {
        height: 148,
        label: `Tokens of this text against the number of merges: from ${most} bytes down to ${count} tokens; now ${tokens.length} after ${step}`,
        children: [
          svg("text", { class: "gptedu-title", x: left, y: 13 }, "tokens of this text"),
          svg("path", { d: `M${left} ${top}V${bottom}H${right}`, fill: "none", stroke: colours.rule }),
          text({ x: left - 5, y: top + 4, "text-anchor": "end" }, most),
          text({ x: left - 5, y: bottom, "text-anchor": "end" }, 0),
          svg("path", { d: `M${left} ${level}H${right}`, stroke: colours.stream, "stroke-dasharray": "4 3" }),
          text({ x: right, y: level - 5, "text-anchor": "end", class: "gptedu-number gptedu-muted" }, `${symbols.length} characters`),
          svg("path", { d: `${path}H${right}`, fill: "none", stroke: colours.accent, "stroke-width": 2 }),
          svg("circle", { cx: x(step), cy: y(tokens.length), r: 4.5, fill: colours.accent }),
          text({ x: x(step) + (late ? -8 : 8), y: y(tokens.length) + (late ? 16 : -8), "text-anchor": late ? "end" : "start", "font-weight": 600 }, `${tokens.length} tokens`),
          text({ x: left, y: bottom + 16 }, "0 merges"),
          text({ x: right, y: bottom + 16, "text-anchor": "end" }, several(end, "merge")),
          text({ x: left, y: bottom + 31, class: "gptedu-number gptedu-muted" }, "vocabulary 256"),
          text({ x: right, y: bottom + 31, "text-anchor": "end", class: "gptedu-number gptedu-muted" }, 256 + end),
        ],
      };
    });
    return picture;
  }

  // The widget --------------------------------------------------------------------------------------

  /** Text that can be shown, and what had to be left out. */
  function readable(bpe, given) {
    const { text, dropped } = bpe.usable(given);
    const all = [...text], cut = all.length > LONGEST;
    const note = cut ? ` Shown and counted: the first ${LONGEST} of ${all.length.toLocaleString("en")} characters.` : "";
    return { text: all.slice(0, LONGEST).join(""), note: `${note}${dropped.length ? " Half characters are left out." : ""}` };
  }

  /** The tokenizer that the reader chose: what Python sent, or one that learns from the text itself. */
  function chooser(view) {
    const given = GptEdu.tokenizerFromDict(view.get("bpe"));
    let own = { text: null, bpe: given };
    return (text) => {
      if (view.get("learn_from") !== "text") return given;
      if (own.text !== text) own = { text, bpe: new GptEdu.BPETokenizer(learn(text)) };
      return own.bpe;
    };
  }

  GptEdu.widget("tokenizer", {
    async render(view) {
      const bpeFor = chooser(view), characters = GptEdu.tokenizerFromDict(view.get("characters"));
      let data = study("", { bpe: GptEdu.tokenizerFromDict(view.get("bpe")), characters, step: 0 });

      /** To the next merge that changes this text, or back to before the last one. */
      const jump = (forward) => {
        const ids = data.all.slice(1).map(({ id }) => id - 255);
        const to = forward ? ids.find((step) => step > data.step) : (ids.findLast((step) => step < data.step) ?? 0);
        if (to !== undefined) view.set({ step: to });
      };
      const words = (step) => (step < 0 ? "all" : String(step));
      const slider = view.slider("step", { label: "Merges", max: MOST, format: (step) => words(step).padStart(4, "\u2007") });
      const back = view.button("Back", () => jump(false)), next = view.button("Next merge", () => jump(true));
      view.row(view.text("text", { label: "Text", rows: 2 }));
      view.row(slider, back, next,
        view.select("learn_from", { label: "Learnt from", options: [["given", view.get("corpus")], ["text", "the text above"]] }));
      const picture = strips(view), tokens = curve(view);
      view.add(h("p", { class: "gptedu-strips" }, "Upper boxes: characters and their ids. Lower boxes: BPE tokens, byte by byte."));
      view.add(picture.el);
      view.status();
      const pairs = h("p", { class: "gptedu-pairs" });
      view.add(pairs, tokens.el);
      view.menu();

      const range = slider.querySelector("input"), output = slider.querySelector("output");
      const show = () => {
        const { text, note } = readable(data.bpe, view.get("text"));
        const bpe = bpeFor(text), most = bpe.merges.length;
        const step = view.get("step") < 0 ? most : Math.min(view.get("step"), most);
        range.max = String(most);
        range.value = String(step);
        output.textContent = String(step).padStart(4, "\u2007");
        range.setAttribute("aria-valuetext", `${step} of ${most}`);
        data = picture.data = tokens.data = study(text, { bpe, characters, step });
        picture.update();
        tokens.update();
        pairs.replaceChildren(...pairWords(data, view.get("learn_from") === "text").flat(2));
        view.say(`${mergeWords(data)} ${countWords(data)}${note}`);
      };
      await view.draw(show);
    },
  });

  GptEdu.tokenizerExplorer = { learn, layout, pairCounts }; // for the tests
})((globalThis.GptEdu ||= {}));
