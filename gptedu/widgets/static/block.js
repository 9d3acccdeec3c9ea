/* The gradient-flow explorer: two charts of recorded numbers, by block and by step, for four ways to
 * wire a block. One function draws both. */
(function (GptEdu) {
  "use strict";
  const { svg, fixed, ramp } = GptEdu;

  const WIRINGS = { pre: "pre-norm", post: "post-norm", none: "no norm", "no residual": "no residual" };
  const INITS = { gpt2: "GPT-2’s, small", torch: "PyTorch’s own", xavier: "Xavier, as in Xiong et al." };
  const SHOWN = { gradient: "gradient, at the start", later: "gradient, after 20 steps", stream: "size of the stream, at the start" };

  // What is shown: pure ---------------------------------------------------------------------------

  /** The two charts' lines: name -> heights. @param {Record<string, any>} state */
  function linesOf({ measured, init, depth, show, warmup, own }) {
    const at = measured.depths.indexOf(depth), run = warmup ? "warmup" : "at once";
    const blocks = {}, losses = {};
    for (const wiring of Object.keys(WIRINGS)) {
      const found = measured.measured[`${init}/${wiring}`];
      blocks[wiring] = show === "later" ? found.training[run].gradient : found[show][at];
      losses[wiring] = found.training[run].loss;
    }
    if (own.length && show !== "stream") blocks.yours = own;
    return { blocks, losses };
  }

  /** Powers of ten around pre-norm, post-norm, the chosen wiring and yours at all depths, so that the
   * slider moves lines and not the axis. */
  function decades({ measured, init, wiring, show, own }) {
    const seen = ["pre", "post", wiring].flatMap((name) => {
      const found = measured.measured[`${init}/${name}`];
      return show === "later" ? Object.values(found.training).flatMap((run) => run.gradient) : found[show].flat();
    });
    const logs = [...seen, ...own].filter((x) => x > 0).map(Math.log10);
    const low = Math.floor(Math.min(...logs) + 1e-9), high = Math.ceil(Math.max(...logs) - 1e-9);
    return [low, Math.max(high, low + 1)];
  }

  /** 0.45, 2.1 × 10⁻⁷, and 0 for what 32 bits round to it. */
  function words(x) {
    if (x < 1e-44) return "0";
    if (x >= 0.001 && x < 10000) return String(Number(x.toPrecision(2)));
    const power = Math.floor(Math.log10(x)), signs = "⁰¹²³⁴⁵⁶⁷⁸⁹";
    const up = [...String(Math.abs(power))].map((digit) => signs[digit]).join("");
    return `${fixed(x / 10 ** power, 1)} × 10${power < 0 ? "⁻" : ""}${up}`;
  }

  function sentence(state) {
    const { measured, wiring, init, depth, show, warmup } = state, { training } = measured;
    const { blocks, losses } = linesOf(state), heights = blocks[wiring], loss = losses[wiring];
    const name = `${WIRINGS[wiring][0].toUpperCase()}${WIRINGS[wiring].slice(1)}`;
    const layers = show === "later" ? training.n_layer : depth;
    const what = show === "stream" ? "the stream’s size" : "the gradient";
    let first = `${name}, ${layers} blocks: training broke down before a gradient could be seen.`;
    if (heights.length) {
      const ratio = heights.at(-1) / heights[0], times = ratio > 1 ? `${words(ratio)} times more` : `${words(1 / ratio)} times less`;
      const even = heights[0] < 1e-44 ? "so block 1 is cut off" : ratio > 0.67 && ratio < 1.5 ? "nearly the same" : times;
      first = `${name}, ${layers} blocks: ${what} is ${words(heights[0])} at block 1 and ${words(heights.at(-1))} at block ${layers}, ${even}.`;
    }
    const rate = warmup ? `With ${training.warmup} steps of warm-up` : "At full rate from the first step";
    const whole = Math.floor(training.steps / training.mean_of_steps), end = loss.at(-1);
    if (loss.length < whole) return `${first} ${rate}, ${training.n_layer} blocks break down within ${(loss.length + 1) * training.mean_of_steps} steps: the loss is no number any more.`;
    const verdict = end > measured.unigram - 0.1
      ? `that is no better than knowing how often each letter occurs (${fixed(measured.unigram)})`
      : `it learns (letter frequencies alone give ${fixed(measured.unigram)})`;
    return `${first} ${rate}, ${training.n_layer} blocks reach a loss of ${fixed(end)} in ${training.steps} steps: ${verdict}.`;
  }

  // A chart ---------------------------------------------------------------------------------------

  const HIGH = 250, LEFT = 46, TOP = 28, BOTTOM = 40, LABEL = 92; // px

  /** Labels moved apart, from the top down, and those that then stand too low from the bottom up. */
  function spread(labels, gap) {
    let last = -Infinity, next = HIGH - BOTTOM;
    for (const label of labels.sort((a, b) => a.y - b.y)) last = label.y = Math.max(label.y, last + gap);
    for (const label of [...labels].reverse()) next = (label.y = Math.min(label.y, next)) - gap;
    return labels;
  }

  /** Lines with their names at the right; the chosen one strong. What leaves the picture runs along its edge, dotted,
   * and an arrow at the name says where to.
   * @param {{lines: Record<string, number[]>, chosen: string, title: string, xlabel: string, up: {low: number, high: number,
   *   ticks: number[], place: (x: number) => number, format: (x: number) => string}, x: (i: number) => number, last: number,
   *   level?: [string, number], label: string}} chart */
  function draw({ lines, chosen, title, xlabel, up, x, last, level, label }, width, colours) {
    const right = width - LABEL, first = x(0);
    const across = (n) => LEFT + ((n - first) / (last - first || 1)) * (right - LEFT);
    const y = (value) => TOP + Math.min(1, Math.max(0, (up.high - up.place(value)) / (up.high - up.low))) * (HIGH - TOP - BOTTOM);
    const small = { class: "gptedu-number gptedu-muted" };
    const out = [svg("text", { x: 0, y: 14, class: "gptedu-title" }, title)];
    for (const tick of up.ticks) {
      out.push(svg("path", { d: `M${LEFT} ${y(tick)}H${right}`, stroke: colours.rule }));
      out.push(svg("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end", ...small }, up.format(tick)));
    }
    const step = [1, 2, 4, 5, 10, 20, 30, 40].find((n) => last / n <= (width < 500 ? 5 : 8));
    for (let n = step; n <= last; n += step) out.push(svg("text", { x: across(n), y: HIGH - BOTTOM + 16, "text-anchor": "middle", ...small }, String(n)));
    out.push(svg("text", { x: (LEFT + right) / 2, y: HIGH - 5, "text-anchor": "middle", class: "gptedu-number" }, xlabel));
    if (level) out.push(svg("path", { d: `M${LEFT} ${y(level[1])}H${right}`, stroke: colours.muted, "stroke-dasharray": "4 3" }));
    const labels = level ? [{ y: y(level[1]), text: level[0], colour: colours.muted }] : [];
    const faint = ramp([colours.paper, colours.stream], 0.55), order = Object.keys(lines).sort((a) => (a === chosen ? 1 : -1));
    for (const name of order.filter((one) => lines[one].length)) {
      const heights = lines[name], strong = name === chosen || name === "yours";
      const colour = name === "yours" ? colours.key : strong ? colours.accent : faint;
      const outside = (v) => (up.place(v) > up.high ? " ↑" : up.place(v) < up.low ? " ↓" : "");
      const dots = heights.some(outside) ? "2 4" : null;
      const d = heights.map((height, i) => `${i ? "L" : "M"}${across(x(i)).toFixed(1)} ${y(height).toFixed(1)}`).join("");
      out.push(svg("path", { d, fill: "none", stroke: colour, "stroke-width": strong ? 2.6 : 1.6, "stroke-linejoin": "round", "stroke-dasharray": dots, "data-line": name }));
      const end = { cx: across(x(heights.length - 1)), cy: y(heights.at(-1)) };
      out.push(svg("circle", { ...end, r: strong ? 4 : 2.5, fill: colour }));
      labels.push({ y: end.cy, text: `${WIRINGS[name] ?? name}${outside(heights.at(-1))}`, colour: strong ? colour : colours.muted });
    }
    const names = spread(labels, 15).map((one) => svg("text", { x: right + 8, y: one.y + 4, fill: one.colour }, one.text));
    return { height: HIGH, children: [...out, ...names], label };
  }

  function blockChart(state, lines, width, colours) {
    const [low, high] = decades(state), every = Math.ceil((high - low) / 6), ticks = [];
    for (let power = low; power <= high; power += every) ticks.push(10 ** power);
    const up = { low, high, ticks, place: (v) => Math.log10(Math.max(v, 1e-300)), format: (v) => (v >= 0.001 && v <= 1000 ? String(Number(v.toPrecision(1))) : `1e${Math.round(Math.log10(v))}`) };
    const last = Math.max(...Object.values(lines).map((line) => line.length)), title = SHOWN[state.show];
    const deep = state.show === "later" ? state.measured.training.n_layer : state.depth;
    return draw({ lines, chosen: state.wiring, up, last, x: (i) => i + 1, title: `${title[0].toUpperCase()}${title.slice(1)}, ${deep} blocks`,
      xlabel: "block, from the embedding to the head", label: `${title} in each of ${deep} blocks, logarithmic` }, width, colours);
  }

  function lossChart({ measured, wiring, warmup }, lines, width, colours) {
    const { n_layer, steps, warmup: rise, mean_of_steps: n } = measured.training;
    const up = { low: 2.4, high: 4.4, ticks: [2.5, 3, 3.5, 4], place: (v) => v, format: (v) => fixed(v, 1) };
    const title = `Loss of ${n_layer} blocks, ${warmup ? `${rise} steps of warm-up` : "full rate at once"}`;
    return draw({ lines, chosen: wiring, up, last: steps, x: (i) => (i + 0.5) * n, title, xlabel: "training step",
      level: ["letters only", measured.unigram], label: `${title}, over ${steps} steps` }, width, colours);
  }

  // The widget ------------------------------------------------------------------------------------

  const TRAITS = ["wiring", "init", "depth", "show", "warmup", "own", "measured"];

  GptEdu.widget("block", {
    async render(view) {
      const state = () => Object.fromEntries(TRAITS.map((trait) => [trait, view.get(trait)]));
      const depth = view.slider("depth", { label: "Blocks", values: view.get("measured").depths });
      view.row(
        view.select("wiring", { label: "Wiring", options: Object.entries(WIRINGS) }), depth,
        view.select("init", { label: "Weights drawn", options: Object.entries(INITS) }),
        view.select("show", { label: "Show", options: Object.entries(SHOWN) }),
        view.checkbox("warmup", { label: "warm-up" }),
      );
      const plain = view.python.bind(view);
      view.python = () => (view.get("own").length ? plain().replace("(", "(own=gradients, ") : plain());
      const pictures = [["blocks", blockChart], ["losses", lossChart]].map(([part, paint]) =>
        view.picture((width, colours) => paint(state(), linesOf(state())[part], width, colours)));
      view.add(...pictures.map((picture) => picture.el));
      view.status();
      view.menu();
      await view.draw(() => {
        const only = view.get("show") === "later"; // recorded at one depth
        depth.style.opacity = only ? "0.5" : "";
        depth.querySelector("input").disabled = only;
        for (const picture of pictures) picture.update();
        view.line.style.minHeight = view.el.clientWidth < 500 ? "9em" : "4.5em"; // nothing below moves
        view.say(sentence(state()));
      });
    },
  });

  GptEdu.flow = { linesOf, decades, sentence, words };
})((globalThis.GptEdu ||= {}));
