/* The cost explorer: operations and bytes of a training, for a length, a batch and a number of
 * devices. Python sends what does not depend on these (scale.py); the rest is multiplication. */
(function (GptEdu) {
  "use strict";
  const { fixed, ramp, whole, percent, short, inFlops, drawBar } = GptEdu;
  const STEP = 76; // px, from bar to bar
  const GPU = 4e14; // operations a second: 40 % of an H100's peak
  const sum = (parts) => Object.values(parts).reduce((a, b) => a + b, 0);
  const inGigabytes = (n) => short(n, 1000, ["bytes", "kB", "MB", "GB", "TB", "PB"]);

  /** @param {Record<string, number>} m a model's constants
   * @param {{T: number, batch: number, devices: number, sharded: boolean, kernel: string}} run */
  function costs(m, { T, batch, devices, sharded, kernel }) {
    const work = { projections: m.projections, scores: m.scores * T, mixing: m.scores * T, MLP: m.mlp, head: m.head };
    const own = (4 * m.parameters) / (sharded ? devices : 1);
    const activations = batch * T * (m.kept + (kernel === "explicit" ? m.weights * T : 0));
    const held = { weights: own, gradients: own, optimizer: 2 * own, activations };
    const seconds = (20 * m.parameters * 3 * sum(work)) / (devices * GPU);
    return { work, forward: sum(work), held, peak: sum(held), own: 4 * own, seconds };
  }

  function span(seconds) {
    const days = seconds / 86400, small = days < 1 / 12 ? [1440 * days, "minutes"] : [24 * days, "hours"];
    const [n, unit] = days > 730 ? [days / 365, "years"] : days > 2 ? [days, "days"] : small;
    if (unit === "minutes" && n < 1) return "less than a minute";
    return `${n < 10 ? fixed(n, 1) : whole(Math.round(n))} ${unit}`;
  }

  /** What the bars show, in words. */
  function sentence(name, m, run, { work, forward, held, peak, own, seconds }) {
    const device = run.devices === 1 ? "The one device" : `Each of ${whole(run.devices)} devices`;
    const share = run.devices === 1 ? "" : run.sharded ? ", its share," : ", a whole copy,";
    const beyond = run.T > m.longest ? ` (${name} itself was made for ${whole(m.longest)}.)` : "";
    return `At ${whole(run.T)} tokens, scores and mixing are ${percent(work.scores + work.mixing, forward)} of ${name}’s work.${beyond} ` +
      `${device} holds ${inGigabytes(peak)}: ${inGigabytes(own)} of the model’s numbers${share} and ${inGigabytes(held.activations)} of activations. ` +
      `20 tokens a parameter take ${span(seconds)} at 400 TFLOP/s a device.`;
  }

  /** @returns {{title: string, total: string, parts: {name: string, size: number, colour: string}[]}[]} */
  function bars({ work, forward, held, peak }, c) {
    const tint = (colour, t) => ramp([c.paper, colour], t);
    const colours = { projections: c.stream, scores: c.query, mixing: c.value, MLP: tint(c.ink, 0.45), head: tint(c.accent, 0.75),
      weights: c.accent, gradients: tint(c.accent, 0.6), optimizer: tint(c.accent, 0.3), activations: c.stream };
    const parts = (sizes) => Object.entries(sizes).map(([name, size]) => ({ name, size, colour: colours[name] }));
    return [{ title: "Forward pass, one token", total: inFlops(forward), parts: parts(work) },
      { title: "Training, bytes on each device", total: inGigabytes(peak), parts: parts(held) }];
  }

  GptEdu.widget("scale", {
    async render(view) {
      const models = view.get("models"), powers = (n, from = 0) => Array.from({ length: n }, (_, i) => 2 ** (from + i));
      const slider = (trait, label, values) =>
        view.slider(trait, { label, values: [...new Set([...values, view.get(trait)])].sort((a, b) => a - b), format: whole });
      view.row(
        view.select("preset", { label: "Model", options: Object.keys(models) }),
        slider("context", "Context", powers(12, 6)), slider("batch_size", "Texts a device", powers(8)),
        slider("devices", "Devices", powers(14)), view.checkbox("sharded", { label: "Sharded" }),
        view.select("kernel", { label: "Attention", options: ["fused", "explicit"] }),
      );
      let all, label;
      const picture = view.picture((width, colours) => ({
        height: 2 * STEP - 6, label, children: bars(all, colours).flatMap((bar, i) => drawBar(bar, i * STEP, width, colours)),
      }));
      view.add(picture.el);
      view.status();
      view.menu();
      await view.draw(() => {
        const [T, batch, devices, sharded, kernel] = ["context", "batch_size", "devices", "sharded", "kernel"].map((trait) => view.get(trait));
        const run = { T, batch, devices, sharded, kernel }, name = view.get("preset");
        all = costs(models[name], run);
        label = sentence(name, models[name], run, all);
        picture.update();
        view.line.style.minHeight = view.el.clientWidth < 500 ? "10.6em" : "4.5em"; // nothing below moves
        view.say(label);
      });
    },
  });

  GptEdu.scale = { costs };
})((globalThis.GptEdu ||= {}));
