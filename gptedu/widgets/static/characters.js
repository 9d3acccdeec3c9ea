/* The character map: tokens by the two directions in which their vectors differ most, and the nearest
 * of the chosen one. Arithmetic first, then the picture. */
(function (GptEdu) {
  "use strict";
  const { svg, visible, fixed } = GptEdu;

  const MOST = 150, NEAR = 6, VOTES = 3; // tokens on the map, neighbours in the list and in the count

  // Arithmetic: pure ------------------------------------------------------------------------------

  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const distance = ([x, y], [a, b]) => Math.hypot(x - a, y - b);
  const indices = (n) => Array.from({ length: n }, (_, i) => i);
  const sum = (list) => list.reduce((a, b) => a + Number(b), 0);

  /** Every row with every row; a row of zeros is like nothing.
   * @param {ArrayLike<number>} rows (V,C) @returns {Float64Array} (V,V) */
  function cosines(rows, V) {
    const all = Float64Array.from(rows), C = all.length / V;
    const units = indices(V).map((i) => {
      const row = all.subarray(i * C, (i + 1) * C), length = Math.sqrt(dot(row, row)) || 1;
      return row.map((x) => x / length);
    });
    return Float64Array.from(units.flatMap((a) => units.map((b) => dot(a, b))));
  }

  /** The eigenvector of the largest eigenvalue at right angles to those found: multiply until it stays.
   * Its largest coordinate is positive. */
  function leading(matrix, n, found = []) {
    let x = Float64Array.from({ length: n }, (_, i) => Math.cos(i * i)), value = 0;
    for (let round = 0, moved = 1; round < 5000 && moved > 1e-13; round++) {
      const y = x.map((_, i) => dot(x, matrix.subarray(i * n, (i + 1) * n)));
      for (const { vector } of found) {
        const along = dot(y, vector);
        vector.forEach((v, i) => (y[i] -= along * v));
      }
      value = Math.sqrt(dot(y, y));
      const next = y.map((v) => v / (value || 1));
      moved = next.reduce((most, v, i) => Math.max(most, Math.abs(v - x[i])), 0);
      x = next;
    }
    const far = x.reduce((most, v) => (Math.abs(v) > Math.abs(most) ? v : most), 0);
    return { value, vector: far < 0 ? x.map((v) => -v) : x };
  }

  /** Where each row (of length 1, less their mean) stands along the two directions of most difference,
   * and how much of all differences they hold. @param {Float64Array} all cosines (V,V) */
  function project(all, V) {
    const mean = indices(V).map((i) => sum([...all.subarray(i * V, (i + 1) * V)]) / V), middle = sum(mean) / V;
    const centred = all.map((x, at) => x - mean[Math.floor(at / V)] - mean[at % V] + middle);
    const first = leading(centred, V), second = leading(centred, V, [first]);
    const points = indices(V).map((i) => [first, second].map(({ value, vector }) => vector[i] * Math.sqrt(value)));
    return { points, share: (first.value + second.value) / (sum(indices(V).map((i) => centred[i * V + i])) || 1) };
  }

  /** The others, nearest first. */
  const nearest = (all, V, i, k) => indices(V).filter((j) => j !== i).sort((a, b) => all[i * V + b] - all[i * V + a]).slice(0, k);

  /** @returns {"vowel"|"consonant"|"capital"|"sign"} of the first sign that is no space */
  function groupOf(piece) {
    const [sign] = [...piece.trim(), ...piece, " "];
    if ("aeiou".includes(sign)) return "vowel";
    if (sign !== sign.toUpperCase()) return "consonant";
    return sign !== sign.toLowerCase() ? "capital" : "sign";
  }

  /** How many of the three nearest are of one's own group, and what chance gives. */
  function agreement(all, groups) {
    const V = groups.length, share = (among) => {
      const same = indices(V).flatMap((i) => among(i).map((j) => groups[i] === groups[j]));
      return sum(same) / (same.length || 1);
    };
    return { found: share((i) => nearest(all, V, i, VOTES)), chance: share((i) => indices(V).filter((j) => j !== i)) };
  }

  /** The rows that a trait asks for. */
  function rowsOf(kind, { model, untrained }, seed, V) {
    const rows = (of, name) => {
      const { data, shape } = of.tensors.get(`${name}.weight`);
      return data.subarray(0, V * shape[1]);
    };
    if (kind === "head") return rows(model, model.config.tie_embeddings ? "token_embedding" : "head");
    const [after, before] = [model, untrained(seed)].map((of) => rows(of, "token_embedding"));
    return { after, before, learned: after.map((x, i) => x - before[i]) }[kind];
  }

  /** Names that would lie on each other, pushed apart step by step inside a frame; the others stay.
   * @param {number[][]} points @param {number[]} widths in px @param {number[][]} frame left and right, top and bottom */
  function apart(points, widths, frame, high = 17) {
    const at = points.map((point) => [...point]);
    for (let round = 0; round < 80; round++) {
      for (const i of indices(at.length)) {
        for (const j of indices(i)) {
          const size = [(widths[i] + widths[j]) / 2, high], gap = size.map((one, axis) => (at[i][axis] - at[j][axis] || 0.01) / one);
          const far = Math.hypot(...gap), push = (1 - far) / (2 * far);
          if (far >= 1) continue;
          for (const [k, sign] of [[i, 1], [j, -1]]) {
            at[k] = frame.map(([low, top], axis) => Math.min(top, Math.max(low, at[k][axis] + sign * push * gap[axis] * size[axis])));
          }
        }
      }
    }
    return at;
  }

  GptEdu.characters = { cosines, project, nearest, groupOf, agreement, rowsOf, apart };

  // The picture -----------------------------------------------------------------------------------

  const TABLES = { learned: "what training added", after: "after training", before: "before training", head: "the head" };
  const COLOURS = { // light, dark: none of those that mean query, key and value
    vowel: ["#a3306f", "#f59ccb"], consonant: ["#1c6a9c", "#7cc0ee"], capital: ["#5b3f8c", "#c4b2f0"], sign: ["#8a5000", "#e8b063"],
  };
  const SHAPES = { // around a point: told apart without colour
    vowel: "M-8 0a8 8 0 1 0 16 0a8 8 0 1 0 -16 0z", consonant: "", capital: "M-7.5 -7.5h15v15h-15z", sign: "M0 -10.5L10.5 0L0 10.5L-10.5 0z",
  };
  const PAD = 16, TOP = 30, LIST = 190, LINE = 22, FAR = 5; // px; a name that is moved further has a dot at its place
  const WAYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  /** Where everything stands, for the width that there is. */
  function layout(points, names, width) {
    const beside = width >= 560, right = beside ? width - LIST : width, high = Math.min(430, Math.max(300, 0.8 * right));
    const scale = (axis, from, to) => {
      const all = points.map((point) => point[axis]), low = Math.min(...all), wide = Math.max(...all) - low || 1;
      return (x) => from + ((x - low) / wide) * (to - from);
    };
    const x = scale(0, PAD, right - PAD), y = scale(1, high - PAD, TOP + PAD);
    const list = beside ? { left: right + 16, top: TOP } : { left: 8, top: high + 8 };
    const home = points.map((p) => [x(p[0]), y(p[1])]), frame = [[PAD, right - PAD], [TOP + PAD, high - PAD]];
    const at = apart(home, names.map((name) => Math.max(17, 7.4 * [...name].length)), frame);
    return { home, at, list, height: beside ? high : high + (NEAR + 1) * LINE + 14 };
  }

  GptEdu.widget("characters", {
    async render(view) {
      const loaded = await view.load(), { tokenizer } = loaded, V = Math.min(MOST, tokenizer.vocabSize);
      const unit = tokenizer instanceof GptEdu.CharTokenizer ? "character" : "token";
      const pieces = indices(V).map((i) => tokenizer.piece(i)), groups = pieces.map(groupOf);
      const names = pieces.map((piece) => [...visible(piece)].slice(0, 6).join("")), known = new Map(pieces.map((piece, i) => [piece, i]));
      let peek = null, data, place; // what is pointed at; numbers; where they are drawn
      const chosen = () => known.get(view.get("symbol")) ?? 0, cosine = (i) => data.all[(peek ?? chosen()) * V + i];
      view.row(
        view.select("symbol", { label: unit === "token" ? "Token" : "Character", options: pieces.map((piece, i) => [piece, names[i]]) }),
        view.select("table", { label: "Table", options: Object.entries(TABLES) }),
      );

      const picture = view.picture((width, colours) => {
        if (place?.key !== `${data.key} ${width}`) place = { key: `${data.key} ${width}`, ...layout(data.points, names, width) };
        const me = peek ?? chosen(), near = nearest(data.all, V, me, NEAR), { left, top } = place.list;
        const ink = (group) => COLOURS[group][colours.dark ? 1 : 0];
        const text = (x, y, words, more) => svg("text", { x, y, ...more }, words);
        const shape = (x, y, d, more) => svg("path", { d, transform: `translate(${x} ${y})`, ...more });
        const mark = (i, x, y) => {
          const colour = ink(groups[i]), own = SHAPES[groups[i]], fill = i === me ? colour : colours.paper, bold = near.includes(i) ? 700 : 400;
          const body = shape(x, y, own || (i === me ? SHAPES.vowel : ""), { fill, "fill-opacity": i === me ? 1 : 0.6, stroke: own ? colour : "none" });
          return [body, text(x, y + 4, names[i], { class: "gptedu-token", "text-anchor": "middle", "font-weight": bold, fill: i === me ? colours.paper : colour })];
        };
        const legend = Object.keys(COLOURS).map((group, n) => {
          const x = 12 + (n * Math.min(430, width - 14)) / 4;
          return [shape(x, 12, SHAPES[group], { fill: "none", stroke: ink(group) }), text(x + (SHAPES[group] ? 14 : -4), 16, `${group}s`, { fill: ink(group) })];
        });
        const lines = near.map((i) => svg("path", { d: `M${place.at[me]}L${place.at[i]}`, stroke: colours.stream, opacity: Math.max(0.15, cosine(i)) }));
        const strays = indices(V).filter((i) => distance(place.home[i], place.at[i]) > FAR);
        const homes = strays.map((i) => svg("g", { opacity: 0.55, "data-moved": names[i] }, [
          svg("path", { d: `M${place.home[i]}L${place.at[i]}`, stroke: ink(groups[i]) }),
          svg("circle", { cx: place.home[i][0], cy: place.home[i][1], r: 1.8, fill: ink(groups[i]) }),
        ]));
        const rank = (i) => 2 * Number(i === me) + Number(near.includes(i)); // the chosen one is drawn last
        const marks = indices(V).sort((i, j) => rank(i) - rank(j)).map((i) => mark(i, ...place.at[i]));
        const list = near.map((i, n) => {
          const y = top + (n + 1) * LINE + 8, width = 90 * Math.max(0, cosine(i));
          const bar = svg("rect", { x: left + 70, y: y - 11, width, height: 12, fill: ink(groups[i]), opacity: 0.35 });
          return [mark(i, left + 12, y - 4), bar, text(left + 64, y, fixed(cosine(i)), { class: "gptedu-number", "text-anchor": "end" })];
        });
        const title = text(left, top + 8, `nearest to ${names[me]}`, { class: "gptedu-title" });
        const label = `Map of ${V} ${unit}s, ${TABLES[view.get("table")]}. Arrow keys go from one to the next; typing a ${unit} chooses it.`;
        return { height: place.height, label, children: [legend, lines, homes, marks, title, list].flat(Infinity) };
      });
      const root = picture.root, keys = { role: "application", tabindex: 0, "aria-roledescription": "map", "data-lm-suppress-shortcuts": true };
      for (const [name, value] of Object.entries(keys)) root.setAttribute(name, String(value));
      const show = (i) => {
        if (i === peek) return;
        peek = i;
        picture.update();
        view.say(sentence());
      };
      const choose = (i) => (show(null), view.set({ symbol: pieces[i] }));
      const under = (event) => {
        const box = root.getBoundingClientRect(), away = place.at.map((at) => distance(at, [event.clientX - box.left, event.clientY - box.top]));
        const i = GptEdu.argmax(away.map((distance) => -distance));
        return away[i] < 20 ? i : null;
      };
      root.addEventListener("pointermove", (event) => show(under(event)));
      root.addEventListener("pointerleave", () => show(null));
      root.addEventListener("click", (event) => choose(under(event) ?? chosen()));
      root.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        const [dx, dy] = WAYS[event.key] ?? [0, 0], [x0, y0] = place.at[chosen()];
        const cost = place.at.map(([x, y]) => { // ahead counts once, aside twice
          const ahead = (x - x0) * dx + (y - y0) * dy, aside = Math.abs((x - x0) * dy) + Math.abs((y - y0) * dx);
          return ahead > 0.5 ? -ahead - 2 * aside : -Infinity;
        });
        const next = GptEdu.argmax(cost), to = Number.isFinite(cost[next]) ? next : known.get(event.key);
        if (to === undefined && !WAYS[event.key]) return;
        event.preventDefault();
        choose(to ?? chosen());
      });
      view.add(picture.el);
      view.status();
      view.menu();

      const sentence = () => {
        const me = peek ?? chosen(), kind = view.get("table"), { found, chance } = data.agreement, percent = (x) => `${fixed(100 * x, 0)}%`;
        const near = nearest(data.all, V, me, VOTES).map((i) => `“${names[i]}” ${fixed(cosine(i))}`).join(", ");
        const which = TABLES[kind][0].toUpperCase() + TABLES[kind].slice(1), cut = tokenizer.vocabSize > V ? ` The map has the first ${V} only.` : "";
        const doubt = kind === "learned" && data.start < 0.1 ? ` But this table did not begin at seed ${view.get("seed")}: the difference is no learning.` : "";
        return `${which}: nearest to “${names[me]}” are ${near} (cosines). Of all ${unit}s’ three nearest, ${percent(found)} are of the same group; ` +
          `chance gives ${percent(chance)}. The map shows ${percent(data.share)} of the differences; where a name is moved to be read, a dot marks its place.${cut}${doubt}`;
      };
      await view.draw(() => {
        const kind = view.get("table"), seed = view.get("seed"), key = `${kind} ${seed}`;
        if (data?.key !== key) {
          const [all, before, after] = [kind, "before", "after"].map((name) => rowsOf(name, loaded, seed, V)), C = before.length / V;
          const row = (table, i) => [...table.subarray(i * C, (i + 1) * C)];
          const start = sum(indices(V).map((i) => cosines([...row(before, i), ...row(after, i)], 2)[1])) / V;
          const like = cosines(all, V);
          data = { key, all: like, start, ...project(like, V), agreement: agreement(like, groups) };
        }
        picture.update();
        view.say(sentence());
      });
    },
  });
})((globalThis.GptEdu ||= {}));
