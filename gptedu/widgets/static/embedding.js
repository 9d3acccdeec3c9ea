/* The position explorer: tables of positions, all their products, and one position's products against
 * the distance. Arithmetic first, then pictures. */
(function (GptEdu) {
  "use strict";
  const { svg, fixed, ramp } = GptEdu;

  /** @typedef {{queries: Float64Array, keys: Float64Array, T: number, D: number}} Rows  T rows of D */

  // Arithmetic: pure ------------------------------------------------------------------------------

  /** base^(-2 i / D) for each pair, in radians a position. */
  const rates = (D, base) => Array.from({ length: D / 2 }, (_, i) => base ** ((-2 * i) / D));

  function sinusoids(T, D, base) {
    const table = new Float64Array(T * D), turning = rates(D, base);
    for (let t = 0; t < T; t++) {
      turning.forEach((rate, i) => {
        table[t * D + 2 * i] = Math.sin(t * rate);
        table[t * D + 2 * i + 1] = Math.cos(t * rate);
      });
    }
    return table;
  }

  /** One vector at T positions, its pairs (i, i + D/2) turned. */
  function turned(vector, T, base) {
    const D = vector.length, half = D / 2, table = new Float64Array(T * D), turning = rates(D, base);
    for (let t = 0; t < T; t++) {
      for (let i = 0; i < half; i++) {
        const cos = Math.cos(t * turning[i]), sin = Math.sin(t * turning[i]);
        table[t * D + i] = vector[i] * cos - vector[i + half] * sin;
        table[t * D + i + half] = vector[i] * sin + vector[i + half] * cos;
      }
    }
    return table;
  }

  /** Normal numbers from a seed: those of Python's `untrained` (Box and Muller 1958). */
  function normals(count, seed) {
    const next = GptEdu.random(seed);
    return Float64Array.from({ length: count }, () => {
      const u = next(), v = next();
      return Math.sqrt(-2 * Math.log(1 - u)) * Math.cos(2 * Math.PI * v);
    });
  }

  /** What the traits ask for. @returns {Rows} */
  function rowsOf({ kind, d, positions, base, same, seed, own }) {
    const alike = (table, T = positions, D = d) => ({ queries: table, keys: table, T, D });
    if (kind === "own" && !own.length) throw new Error("there is no table yet: PositionExplorer(learned=model.position_embedding.weight)");
    if (kind === "own") return alike(Float64Array.from(own.flat()), own.length, own[0].length);
    if (kind === "learned") return alike(normals(positions * d, seed).map((x) => 0.02 * x));
    if (kind === "sinusoidal") return alike(sinusoids(positions, d, base));
    const drawn = normals(2 * d, seed), q = drawn.slice(0, d), k = same ? q : drawn.slice(d);
    return { queries: turned(q, positions, base), keys: turned(k, positions, base), T: positions, D: d };
  }

  /** All products, a row for each query. @param {Rows} rows */
  function products({ queries, keys, T, D }) {
    const out = new Float64Array(T * T);
    for (let t = 0; t < T; t++) {
      for (let s = 0; s < T; s++) {
        let sum = 0;
        for (let i = 0; i < D; i++) sum += queries[t * D + i] * keys[s * D + i];
        out[t * T + s] = sum;
      }
    }
    return out;
  }

  /** The largest difference between two products at the same distance, and between any two. */
  function spread(all, T) {
    let atSame = 0, low = Infinity, high = -Infinity;
    for (let distance = 1 - T; distance < T; distance++) {
      let least = Infinity, most = -Infinity;
      for (let t = Math.max(0, -distance); t < Math.min(T, T - distance); t++) {
        const x = all[t * T + t + distance];
        [least, most] = [Math.min(least, x), Math.max(most, x)];
      }
      atSame = Math.max(atSame, most - least);
      [low, high] = [Math.min(low, least), Math.max(high, most)];
    }
    return { atSame, whole: high - low, low, high };
  }

  // Words -----------------------------------------------------------------------------------------

  const KINDS = { sinusoidal: "sinusoidal", rope: "rotary", learned: "learned, before training", own: "learned, your own" };
  const digitsFor = (range) => Math.min(5, Math.max(1, 3 - Math.floor(Math.log10(range || 1))));

  function sentence({ kind, d, base, same }, { T, digits, apart, all }, position, cell) {
    const there = cell ?? { row: position, column: Math.max(0, position - 1) };
    const value = fixed(all[there.row * T + there.column], digits);
    const distance = there.column - there.row;
    const first = `${KINDS[kind][0].toUpperCase()}${KINDS[kind].slice(1)}: position ${there.row} with ${there.column}, distance ${fixed(distance, 0)}, gives ${value}. `;
    const alone = apart.atSame <= 1e-6 * (apart.whole || 1);
    const law = alone
      ? "At equal distance all products are equal: they depend on the distance only"
      : `At equal distance products differ by up to ${fixed(apart.atSame, digits)}: they do not depend on the distance only`;
    if (kind !== "sinusoidal" && kind !== "rope") return `${first}${law}.`;
    const side = kind === "rope" && !same ? ", and on which comes first" : "";
    const turn = (rate) => Math.round((2 * Math.PI) / rate).toLocaleString("en");
    return `${first}${law}${side}. The fastest pair turns once in ${turn(1)} positions, the slowest in ${turn(rates(d, base).at(-1))}.`;
  }

  // The curve ---------------------------------------------------------------------------------------

  const HIGH = 210, LEFT = 52, TOP = 26, BOTTOM = 38, FAINT = 12; // px, and how many other positions

  /** Round numbers between two, about four of them. */
  function ticks(low, high, most = 4) {
    const step = [1, 2, 5, 10].map((n) => n * 10 ** Math.floor(Math.log10((high - low) / most || 1))).find((n) => (high - low) / n <= most + 1);
    const out = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) out.push(i * step);
    return { step, at: out };
  }

  /** Product against distance: the chosen position in blue, others faint behind it.
   * @param {{all: Float64Array, T: number, apart: any, digits: number}} data */
  function curve({ all, T, apart, digits }, position, cell, width, colours) {
    const pad = 0.06 * (apart.whole || 1), low = Math.min(0, apart.low) - pad, high = Math.max(0, apart.high) + pad;
    const x = (distance) => LEFT + ((distance + T - 1) / (2 * T - 2)) * (width - LEFT - 10);
    const y = (value) => TOP + ((high - value) / (high - low)) * (HIGH - TOP - BOTTOM);
    const path = (t) => Array.from({ length: T }, (_, s) => `${s ? "L" : "M"}${x(s - t).toFixed(1)} ${y(all[t * T + s]).toFixed(1)}`).join("");
    const across = ticks(1 - T, T - 1, width < 500 ? 4 : 8), up = ticks(low, high);
    const decimals = Math.max(0, -Math.floor(Math.log10(up.step) + 1e-9));
    const small = { class: "gptedu-number gptedu-muted" };
    const out = [svg("text", { x: 0, y: 14, class: "gptedu-title" }, `Product of position ${position} with every other`)];
    for (const value of up.at) {
      out.push(svg("path", { d: `M${LEFT} ${y(value)}H${width - 10}`, stroke: value ? colours.rule : colours.muted, "stroke-width": 1 }));
      out.push(svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end", ...small }, fixed(value, decimals)));
    }
    for (const distance of across.at.filter(Number.isInteger)) {
      out.push(svg("text", { x: x(distance), y: HIGH - BOTTOM + 16, "text-anchor": "middle", ...small }, fixed(distance, 0)));
    }
    out.push(svg("path", { d: `M${x(0)} ${TOP}V${HIGH - BOTTOM}`, stroke: colours.rule, "stroke-dasharray": "3 3" }));
    out.push(svg("text", { x: (LEFT + width - 10) / 2, y: HIGH - 4, "text-anchor": "middle", class: "gptedu-number" }, "distance: other position − this one"));
    const faint = ramp([colours.paper, colours.stream], 0.45);
    for (let i = 0; i < FAINT; i++) {
      out.push(svg("path", { d: path(Math.round((i * (T - 1)) / (FAINT - 1))), fill: "none", stroke: faint, "stroke-width": 1 }));
    }
    out.push(svg("path", { d: path(position), fill: "none", stroke: colours.query, "stroke-width": 2.2, "stroke-linejoin": "round" }));
    const mark = cell ?? { row: position, column: Math.max(0, position - 1) };
    out.push(svg("circle", { cx: x(mark.column - mark.row), cy: y(all[mark.row * T + mark.column]), r: 4.5, fill: colours.key, stroke: colours.paper, "stroke-width": 1.5 }));
    return { height: HIGH, children: out, label: `Products of position ${position} against distance, from ${fixed(apart.low, digits)} to ${fixed(apart.high, digits)}` };
  }

  // The widget --------------------------------------------------------------------------------------

  const TRAITS = ["kind", "d", "positions", "base", "same", "seed", "own"];
  const BASES = [10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000, 500000, 1000000];
  const SIZES = [2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];
  const LONG = [8, 12, 16, 24, 32, 48, 64, 96];

  /** Stops of a slider, and among them what the trait says now. */
  const stops = (numbers, now) => [...new Set([...numbers, now])].sort((a, b) => a - b);

  GptEdu.widget("embedding", {
    async render(view) {
      const state = () => Object.fromEntries(TRAITS.map((trait) => [trait, view.get(trait)]));
      const kinds = Object.entries(KINDS).filter(([kind]) => kind !== "own" || view.get("own").length);
      const dimensions = view.slider("d", { label: "Dimensions D", values: stops(SIZES, view.get("d")) });
      const length = view.slider("positions", { label: "Positions T", values: stops(LONG, view.get("positions")) });
      const base = view.slider("base", { label: "Base", values: stops(BASES, view.get("base")), format: (n) => n.toLocaleString("en") });
      const place = view.slider("position", { label: "Position", min: 0, max: 95 });
      const same = view.checkbox("same", { label: "query = key" });
      const seed = view.slider("seed", { label: "Seed", min: 1, max: 20 });
      view.row(view.select("kind", { label: "Positions", options: kinds }), place, dimensions, base, length, same, seed);

      const words = view.python.bind(view);
      view.python = () => (view.get("kind") === "own" ? words().replace("(", "(learned=table, ") : words());
      const heard = (cell) => {
        picture.update();
        tell(cell);
      };
      const map = view.heatmap({ title: "All products", kind: "signed", rowLabel: "query", columnLabel: "key", onCell: heard });
      const table = view.heatmap({ title: "Position vectors", kind: "signed", rowLabel: "position", columnLabel: "dimension" });
      let data;
      const picture = view.picture((width, colours) => curve(data, data.position, map.cell && map.at(map.cell), width, colours));
      view.add(picture.el, GptEdu.h("div", { class: "gptedu-pair" }, map.el, table.el));
      view.status();
      view.menu();
      const tell = (cell) => view.say(sentence(state(), data, data.position, cell));

      const use = (control, used) => {
        control.style.opacity = used ? "" : "0.5";
        for (const input of control.querySelectorAll("input")) input.disabled = !used;
      };
      let drawn = "";
      const show = () => {
        const now = state(), { kind } = now, waves = kind === "sinusoidal" || kind === "rope";
        use(dimensions, kind !== "own");
        use(length, kind !== "own");
        use(base, waves);
        use(same, kind === "rope");
        use(seed, kind === "learned" || kind === "rope");
        const look = JSON.stringify([now, view.el.clientWidth, view.palette().dark]);
        if (look !== drawn) {
          const rows = rowsOf(now), all = products(rows), apart = spread(all, rows.T);
          data = { all, T: rows.T, apart, digits: digitsFor(apart.whole) };
          const names = (n) => Array.from({ length: n }, (_, i) => String(i));
          map.update({ values: all, rowNames: names(rows.T), columnNames: names(rows.T) });
          const title = kind === "rope" ? "The query, turned" : "Position vectors";
          Object.assign(table.options, { title, largest: map.layout.size }); // no higher than its neighbour
          table.update({ values: rows.queries, rowNames: names(rows.T), columnNames: names(rows.D) });
          drawn = look;
        }
        data.position = Math.min(view.get("position"), data.T - 1);
        place.querySelector("input").max = data.T - 1;
        if (data.position !== view.get("position")) view.set({ position: data.position });
        view.line.style.minHeight = view.el.clientWidth < 500 ? "9em" : "4.5em"; // nothing below moves
        picture.update();
        tell(map.cell && map.at(map.cell));
      };
      await view.draw(show);
    },
  });

  GptEdu.positions = { rowsOf, products, spread };
})((globalThis.GptEdu ||= {}));
