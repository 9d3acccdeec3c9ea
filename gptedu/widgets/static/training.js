/* training.js: the training player. A recorded run, or two beside each other: loss curves, and at the
 * chosen moment the sample and one head's attention. All numbers are those of the record. */
(function (GptEdu) {
  "use strict";
  const { h, svg, fixed, ramp, calm, visible } = GptEdu;

  const count = new Intl.NumberFormat("en").format;
  const percent = (share) => `${Math.round(100 * share)}%`;

  // What is shown: pure ---------------------------------------------------------------------------

  /** @typedef {{step: number, loss: number|null, val_loss: number|null, sample: string, attention: string}} Moment */
  /** @typedef {{title: string, about: string, tell: string, ended: string|null, prompt: string, symbols: string[],
   *   model: any, training: any, moments: Moment[],
   *   records: {step: number[], loss: (number|null)[], val_step: number[], val_loss: number[]}}} Run */

  /** Every step at which something of any run was kept. @param {Run[]} runs */
  const stepsOf = (runs) => [...new Set(runs.flatMap((run) => run.moments.map(({ step }) => step)))].sort((a, b) => a - b);

  /** The last step of the longest run. @param {Run[]} runs */
  const lastOf = (runs) => Math.max(...runs.map(({ records }) => records.step.at(-1)));

  /** What was kept last up to a step. @param {Run} run @returns {Moment} */
  const momentAt = (run, step) => run.moments.findLast((moment) => moment.step <= step) ?? run.moments[0];

  /** One head's weights at a moment; `before` and `ahead` are the mean shares of a query's attention
   * that go to the token before it, and to tokens to come. @param {Run} run @param {Moment} moment */
  function attentionOf(run, moment, layer, head) {
    const T = run.symbols.length, { n_layer: L, n_head: H } = run.model;
    const bytes = Uint8Array.from(atob(moment.attention), (sign) => sign.charCodeAt(0));
    const l = Math.min(layer, L), n = Math.min(head, H), start = ((l - 1) * H + n - 1) * T * T;
    const values = Array.from(bytes.subarray(start, start + T * T), (byte) => byte / 255);
    const mean = (keep, rows) => values.reduce((sum, x, i) => sum + (keep(Math.floor(i / T), i % T) ? x : 0), 0) / rows;
    const masked = !bytes.some((byte, i) => byte && i % T > Math.floor(i / T) % T);
    return { values, masked, name: `Layer ${l}, head ${n}`,
      before: mean((i, j) => j === i - 1, T - 1 || 1), ahead: mean((i, j) => j > i, T) };
  }

  /** @param {Run} run */
  function sentence(run, step, layer, head) {
    const moment = momentAt(run, step), { training, model, records } = run;
    const tokens = moment.step * training.batch_size * training.accumulate * model.context_length;
    const where = moment.step === step ? "" : `, last seen at step ${count(moment.step)}`;
    const at = records.val_step.findLastIndex((one) => one <= moment.step), measured = records.val_step[at];
    const validation = at < 0 ? "" : `, validation loss ${fixed(records.val_loss[at])}${measured === moment.step ? "" : ` at step ${count(measured)}`}`;
    const losses = `loss ${moment.loss === null ? "no number" : fixed(moment.loss)}${validation}`;
    const { name, before, ahead, masked } = attentionOf(run, moment, layer, head);
    return `${run.title}${where}: ${count(tokens)} tokens read, ${losses}. ${name} gives ${percent(before)} of its attention to the token before${masked ? "" : `, and ${percent(ahead)} to tokens to come`}.`;
  }

  /** The losses of the axis: all of them, but not far above blind guessing. @param {Run[]} runs */
  function range(runs) {
    const all = runs.flatMap(({ records }) => [...records.loss, ...records.val_loss]).filter((loss) => loss !== null);
    const guess = Math.max(...runs.map((run) => Math.log(run.model.vocab_size)));
    const low = Math.floor(2 * all.reduce((a, b) => Math.min(a, b), guess)) / 2;
    const high = Math.ceil(2 * Math.min(1.4 * guess, all.reduce((a, b) => Math.max(a, b), guess))) / 2;
    return { guess, low, high: Math.max(high, low + 0.5) };
  }

  /** A text in three lines of 14 signs at most. */
  function wrapped(text) {
    const lines = text.match(/\S.{0,13}(?=\s|$)|\S{14}/gsu) ?? [];
    return lines.length > 3 ? [...lines.slice(0, 2), `${lines[2]}…`] : lines;
  }

  // The chart ---------------------------------------------------------------------------------------

  const HIGH = 270, LEFT = 30, TOP = 40, BOTTOM = 38, GUTTER = 112; // px
  const LINE = 15; // px from line to line of a label

  /** Where a step lies: log(1 + step), so that the first steps have room. */
  const axis = (last, width) => (step) => LEFT + (Math.log1p(step) / Math.log1p(last || 1)) * (width - GUTTER - LEFT);

  /** Labels at the ends of their lines, moved apart and into the picture. */
  function spread(labels) {
    const tall = ({ lines }) => LINE * lines.length;
    let top = TOP - 8, rest = labels.reduce((sum, label) => sum + tall(label), 0);
    for (const label of labels.sort((a, b) => a.y - b.y)) {
      label.y = Math.max(top, Math.min(label.y, HIGH - BOTTOM + LINE - rest));
      top = label.y + tall(label);
      rest -= tall(label);
    }
    return labels;
  }

  /** @param {Run[]} runs */
  function chart(runs, step, width, colours) {
    const right = width - GUTTER, { low, high, guess } = range(runs), last = lastOf(runs);
    const x = axis(last, width), y = (loss) => TOP + Math.min(1, Math.max(0, (high - loss) / (high - low))) * (HIGH - TOP - BOTTOM);
    const small = { class: "gptedu-number gptedu-muted" }, every = high - low > 3 ? 1 : 0.5, foot = HIGH - BOTTOM;
    const title = width < 500 ? "Loss (light: training)" : "Loss in nats (strong: validation, light: training)";
    const out = [svg("text", { x: 0, y: 14, class: "gptedu-title" }, title)], labels = [], dots = [];
    for (let tick = Math.ceil(low / every) * every; tick <= high; tick += every) {
      out.push(svg("path", { d: `M${LEFT} ${y(tick)}H${right}`, stroke: colours.rule }));
      out.push(svg("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end", ...small }, fixed(tick, 1)));
    }
    for (const tick of [0, 1, 10, 100, 1000, 10000, 100000].filter((one) => one <= last)) out.push(svg("text", { x: x(tick), y: foot + 17, "text-anchor": "middle", ...small }, count(tick)));
    for (const one of stepsOf(runs)) out.push(svg("path", { d: `M${x(one)} ${foot}v5`, stroke: colours.muted }));
    out.push(svg("text", { x: (LEFT + right) / 2, y: HIGH - 4, "text-anchor": "middle", class: "gptedu-number" }, "training step"));
    out.push(svg("path", { d: `M${LEFT} ${y(guess)}H${right}`, stroke: colours.muted, "stroke-dasharray": "4 3" }));
    runs.forEach((run, i) => {
      const strong = i ? colours.stream : colours.accent, light = ramp([colours.paper, strong], 0.5), { records } = run;
      const moment = momentAt(run, step);
      const curve = (name, steps, losses, stroke, thick) => {
        const spots = steps.map((one, k) => losses[k] !== null && `${x(one).toFixed(1)} ${y(losses[k]).toFixed(1)}`);
        const line = spots.map((spot, k) => (spot ? `${spots[k - 1] ? "L" : "M"}${spot}` : "")).join("");
        const measured = spots.length < 60 ? spots.map((spot) => (spot ? `M${spot}h0` : "")).join("") : ""; // few enough to be marked
        const look = { fill: "none", stroke, "stroke-linejoin": "round", "stroke-linecap": "round" };
        out.push(svg("path", { d: line, ...look, "stroke-width": thick, "data-line": `${name} ${i + 1}` }));
        if (name === "validation") out.push(svg("path", { d: measured, ...look, "stroke-width": 6 }));
        const end = losses.findLast((loss) => loss !== null);
        return end === undefined ? null : { y: y(end) + 4, away: end > high ? "↑ " : "" };
      };
      const dot = (loss, fill) => loss !== null && dots.push(svg("circle", { cx: x(moment.step), cy: y(loss), r: 5, fill, stroke: colours.paper, "stroke-width": 1.5 }));
      const ends = [curve("training", records.step, records.loss, light, 1.4), curve("validation", records.val_step, records.val_loss, strong, 2.6)];
      dot(moment.loss, light);
      dot(moment.val_loss, strong);
      const names = runs.length === 1 ? ["training", "validation"] : ends[1] ? [null, run.title] : [run.title, null];
      names.forEach((name, k) => name && ends[k] && labels.push({ y: ends[k].y, lines: wrapped(ends[k].away + name), fill: k ? strong : colours.muted }));
    });
    const at = x(step), words = { x: Math.min(right - 26, Math.max(LEFT + 26, at)), y: TOP - 8, "text-anchor": "middle", class: "gptedu-number" };
    out.push(svg("rect", { x: at, y: TOP, width: Math.max(0, right + 4 - at), height: foot - TOP, fill: colours.paper, "fill-opacity": 0.55 }));
    out.push(svg("path", { d: `M${at} ${TOP}V${foot}`, stroke: colours.ink, "stroke-width": 1.5, "data-cursor": step }), ...dots, svg("text", words, `step ${count(step)}`));
    out.push(svg("text", { x: right - 4, y: y(guess) - 5, "text-anchor": "end", ...small }, `blind guessing, ${fixed(guess)}`));
    for (const { lines, y: top, fill } of spread(labels)) lines.forEach((line, k) => out.push(svg("text", { x: right + 10, y: top + LINE * k, fill, "font-weight": 600 }, line)));
    return { height: HIGH, children: out, label: `Loss of ${runs.map((run) => run.title).join(" and of ")} over ${count(last)} steps, the steps on a logarithmic axis` };
  }

  // The widget --------------------------------------------------------------------------------------

  const PACE = 900; // ms from moment to moment

  /** The place of one run: what was done, its sample, its head. */
  function place(view, onCell) {
    const words = ["name", "about", "tell", "ended"].map((part) => h("p", { class: `gptedu-run-${part}` }));
    const prompt = h("span", { class: "gptedu-prompt" }), text = h("span");
    const sheet = h("div", { class: "gptedu-sheet", role: "group", tabindex: 0, "data-lm-suppress-shortcuts": "true" }, prompt, text);
    const map = view.heatmap({ largest: 22, onCell });
    const el = h("div", { class: "gptedu-run", role: "group" }, h("div", {}, words, sheet), map.el);
    /** @param {Run} run */
    const update = (run, step, layer, head) => {
      const moment = momentAt(run, step), { values, masked, name } = attentionOf(run, moment, layer, head);
      el.setAttribute("aria-label", run.title);
      sheet.setAttribute("aria-label", `What ${run.title} writes at step ${moment.step}`);
      const told = [run.title, run.about, run.tell && `How to tell: ${run.tell}`, run.ended];
      words.forEach((p, i) => ((p.textContent = told[i] ?? ""), (p.hidden = !told[i])));
      [prompt.textContent, text.textContent] = [run.prompt, moment.sample];
      map.options.title = `${name}, step ${count(moment.step)}`;
      map.update({ values, rowNames: run.symbols, columnNames: run.symbols, hidden: (i, j) => masked && j > i });
    };
    return { el, map, update };
  }

  GptEdu.widget("training", {
    async render(view) {
      const titles = Object.entries(view.get("titles")), steps = [];
      const load = (name) => view.get("recorded")[name] ?? GptEdu.loadRun(name);
      if (view.get("runs").length) view.bound.add("runs");
      /** @type {Run[]} */
      let runs = [], timer = 0;
      const now = () => steps.findLast((step) => step <= (view.get("step") ?? Infinity)) ?? steps[0];
      const name = () => (play.textContent = timer ? "Pause" : calm() ? "Next" : "Play");
      const stop = () => (clearInterval(timer), (timer = 0), name());
      const forward = () => view.set({ step: steps[(steps.indexOf(now()) + 1) % steps.length] });
      const tick = view.guard(() => (calm() || now() === steps.at(-1) ? stop() : forward()));
      const play = view.button("Play", () => {
        if (timer) return stop();
        if (!calm()) timer = setInterval(tick, PACE);
        return forward();
      }, { style: "min-width: 5rem" });
      view.onClose(() => clearInterval(timer));

      const slider = view.slider("step", { label: "Step", values: steps });
      const [track, shown] = [slider.querySelector("input"), slider.querySelector("output")];
      track.addEventListener("input", stop);
      const heads = [view.slider("layer", { label: "Layer", min: 1, max: 99 }), view.slider("head", { label: "Head", min: 1, max: 99 })];
      view.row(view.select("run", { label: "Run", options: titles }), view.select("other", { label: "Beside it", options: [["", "none"], ...titles] }));
      view.row(play, slider);
      const picture = view.picture((width, colours) => chart(runs, now(), width, colours));
      const seek = (event) => {
        const box = picture.root.getBoundingClientRect(), x = axis(lastOf(runs), box.width);
        const away = (step) => Math.abs(x(step) - (event.clientX - box.left));
        stop();
        view.set({ step: steps.reduce((best, step) => (away(step) < away(best) ? step : best)) });
      };
      picture.root.addEventListener("pointerdown", seek);
      picture.root.addEventListener("pointermove", (event) => event.buttons === 1 && seek(event));
      const here = () => [now(), view.get("layer"), view.get("head")];
      const say = () => {
        const i = places.findIndex(({ map }) => map.cell), cell = i < runs.length && places[i]?.map.at(places[i].map.cell);
        const token = (at) => `“${visible(runs[i].symbols[at])}”`;
        const told = cell && `${runs[i].title}, ${places[i].map.options.title}: ${token(cell.row)} at position ${cell.row} gives ${fixed(cell.value, 3)} of its attention to ${token(cell.column)} at position ${cell.column}.`;
        view.say(told || `Step ${count(now())} of ${count(steps.at(-1))}. ${runs.map((run) => sentence(run, ...here())).join(" ")}`);
      };
      const places = [place(view, say), place(view, say)], panels = h("div", { class: "gptedu-runs" }, places.map(({ el }) => el));
      view.add(picture.el);
      view.status();
      view.row(heads);
      view.add(panels);
      view.menu();
      await view.draw(view.latest(async (signal) => {
        const found = await Promise.all([view.get("run"), view.get("other")].filter(Boolean).map(load));
        if (signal.aborted || found.includes(undefined)) return; // a kernel is sending it
        runs = found;
        steps.splice(0, Infinity, ...stepsOf(runs));
        track.max = String(steps.length - 1);
        track.value = String(steps.indexOf(now()));
        track.setAttribute("aria-valuetext", (shown.textContent = count(now())));
        shown.style.minWidth = `${count(steps.at(-1)).length + 0.5}ch`;
        heads.forEach((one, i) => (one.querySelector("input").max = String(Math.max(...runs.map((run) => run.model[["n_layer", "n_head"][i]])))));
        name();
        view.line.setAttribute("aria-live", timer ? "off" : "polite");
        panels.dataset.runs = String(runs.length);
        places[1].el.hidden = runs.length < 2;
        picture.update();
        runs.forEach((run, i) => places[i].update(run, ...here()));
        say();
      }));
    },
  });

  GptEdu.player = { stepsOf, momentAt, attentionOf, sentence, range, wrapped };
})((globalThis.GptEdu ||= {}));
