/* core.js: what every widget stands on, in the page and in a notebook. The page has this one script
 * (classic, so that it also runs from disk); the rest is fetched when the reader comes near.
 *
 * A widget is one file, NAME.js, and a Python class with `_name = "NAME"` (host.py). Its state is its
 * traits: controls write them, drawing reads them, and nothing else remembers anything.
 *
 *   GptEdu.widget("demo", {
 *     async render(view) {
 *       const { model, tokenizer } = await view.load();  // the reader's own, or the shipped model
 *       view.row(
 *         view.text("text", { label: "Text" }),
 *         view.slider("layer", { label: "Layer", min: 1, max: model.config.n_layer }),
 *       );
 *       const map = view.heatmap({ title: "weights", onCell: (cell) => view.say(words(cell)) });
 *       view.add(map.el);
 *       const show = view.latest(async (signal) => {     // a newer call stops an older one
 *         const { text } = tokenizer.usable(view.get("text"));
 *         const ids = tokenizer.encode(text.slice(0, 32));
 *         const { attention } = await model.trace(ids, { signal });
 *         const names = ids.map((id) => tokenizer.piece(id));
 *         map.update({ values: attention[view.get("layer") - 1].subarray(0, ids.length ** 2),
 *                      rowNames: names, columnNames: names, hidden: (row, column) => column > row });
 *       });
 *       view.status();                                   // the sentence below the picture
 *       view.menu();                                     // save as PNG or SVG, copy as Python
 *       await view.draw(show);     // now, and whenever a trait, the theme or the width changes
 *     },
 *   });
 *
 * view   get(trait)  set({trait: value})  load()  draw(task)  latest(task)  guard(task)  onClose(f)
 *        row(...) add(...) status() say(text) menu() palette()
 *        slider select checkbox text button      heatmap(options) picture(label, paint)
 * GptEdu h svg visible softmax argmax entropy fixed ramp calm loadModel random GPT ... (gpt.js)
 * What throws, throws into the widget's own place: `data-gptedu-error` has the reason, and
 * `data-gptedu-live` is there only while all is well.
 */
(function (GptEdu) {
  "use strict";

  // Where this script lies; null in a notebook, where the file is a module.
  const BASE = document.currentScript?.src ? new URL(".", document.currentScript.src).href : null;

  // These stay, should a second copy of this script run; the functions are the newest copy's.
  /** @type {Map<string, Promise<any>>} */
  const scripts = (GptEdu.scripts ||= new Map());
  /** @type {Map<string, Promise<any>>} */
  const models = (GptEdu.models ||= new Map());
  /** @type {Map<string, string>} base64, by name, until it is read */
  const shipped = (GptEdu.shipped ||= new Map());
  /** @type {Map<string, any>} recorded trainings, by name; their scripts (training.py) set them */
  const runs = (GptEdu.runs ||= new Map());
  const widgets = (GptEdu.widgets ||= {});

  // Elements: text is always text, never HTML ---------------------------------------------------

  function build(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value === true ? "" : String(value));
    }
    element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return element;
  }

  /** h("p", { class: "x", onclick: f }, "text", child, [children]); null and false attributes are
   * left out.
   * @returns {any} */
  const h = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);

  /** The same for SVG.
   * @returns {any} */
  const svg = (tag, attributes, ...children) =>
    build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  let lastId = 0;
  const newId = () => `gptedu-${++lastId}`;

  // Small pure helpers ----------------------------------------------------------------------------

  const GLYPHS = { "\n": "↵", " ": "␣", "\t": "⇥", "\u007f": "␡" };
  const wellFormed = (text) => text.replace(/[\ud800-\udfff]/gu, "\ufffd");
  const code = (sign) => `⟨${sign.charCodeAt(0).toString(16).toUpperCase()}⟩`;

  /** A token as it can be seen: newline ↵, space ␣, tab ⇥, control pictures, codes for the signs that
   * turn the writing direction. */
  const visible = (token) =>
    wellFormed(String(token))
      .replace(/[\n \t\u007f]/g, (sign) => GLYPHS[sign])
      .replace(/[\0-\x1f]/g, (sign) => String.fromCharCode(0x2400 + sign.charCodeAt(0)))
      .replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]|^[\u200b-\u200d\u2060\ufeff]$/g, code);

  /** Softmax of a list; minus infinity gives exactly 0, and nothing but that gives NaN, as in torch. */
  function softmax(logits) {
    const highest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
    const powers = Float64Array.from(logits, (x) => Math.exp(x - highest));
    const total = powers.reduce((a, b) => a + b, 0);
    return powers.map((x) => x / total);
  }

  const argmax = (values) => values.reduce((best, x, i) => (x > values[best] ? i : best), 0);
  /** In nats. */
  const entropy = (p) => p.reduce((sum, x) => (x > 0 ? sum - x * Math.log(x) : sum), 0);
  /** A number with so many decimals, a real minus, and never a minus before zero. */
  const fixed = (x, digits = 2) => {
    if (Number.isNaN(x)) return "NaN";
    if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
    const text = Math.abs(x).toFixed(digits);
    return x < 0 && Number(text) !== 0 ? `−${text}` : text;
  };
  const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

  // Colours: the same as in the book's figures ----------------------------------------------------

  const RAMPS = {
    probability: ["#ffffff", "#c9dcec", "#7aa6cc", "#2f6ea5", "#0b2c52"],
    dark: ["#1d1c23", "#1f3f60", "#2f6ea5", "#7aa6cc", "#e6f0f8"],
    signed: ["#005a8e", "#6fadd3", "#ffffff", "#f0a165", "#b34a00"],
  };
  const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

  /** A colour between the stops: t from 0 to 1.
   * @param {string[]} stops @param {number} t */
  function ramp(stops, t) {
    const place = Math.min(1, Math.max(0, t)) * (stops.length - 1);
    const i = Math.min(stops.length - 2, Math.floor(place));
    const [from, to] = [channels(stops[i]), channels(stops[i + 1])];
    const mixed = from.map((x, c) => Math.round(x + (to[c] - x) * (place - i)));
    return `#${mixed.map((x) => x.toString(16).padStart(2, "0")).join("")}`;
  }

  /** Ink or paper, whichever can be read on a colour. */
  const inkOn = (colour) => {
    const [r, g, b] = channels(colour);
    return 0.299 * r + 0.587 * g + 0.114 * b < 140 ? "#ffffff" : "#22242a";
  };

  /** The colours at an element, from the style sheet; `probability(p)` and `signed(x)`, x from -1 to 1.
   * @param {Element} el */
  function palette(el) {
    const style = getComputedStyle(el);
    const read = (name) => style.getPropertyValue(`--gptedu-${name}`).trim();
    const dark = read("dark") === "1";
    const names = ["ink", "muted", "rule", "paper", "accent", "query", "key", "value", "stream", "alarm"];
    return {
      dark,
      probability: (p) => ramp(dark ? RAMPS.dark : RAMPS.probability, p),
      signed: (x) => ramp(RAMPS.signed, (x + 1) / 2),
      ...Object.fromEntries(names.map((name) => [name, read(name)])),
    };
  }

  // State -----------------------------------------------------------------------------------------

  /** The page's stand-in for anywidget's model: the same surface, no kernel behind it. */
  class StaticModel {
    constructor(state) {
      this.state = { ...state };
      /** @type {Map<string, Set<() => void>>} */
      this.listeners = new Map();
    }

    get(name) {
      return this.state[name];
    }

    set(name, value) {
      if (this.state[name] === value) return;
      this.state[name] = value;
      for (const event of [`change:${name}`, "change"]) this.listeners.get(event)?.forEach((f) => f());
    }

    on(event, f) {
      if (!this.listeners.has(event)) this.listeners.set(event, new Set());
      this.listeners.get(event).add(f);
    }

    off(event, f) {
      if (f) this.listeners.get(event)?.delete(f);
      else this.listeners.delete(event);
    }

    save_changes() {}
    send() {}
  }

  /** A value as Python writes it. */
  function pythonLiteral(value) {
    if (value === null || value === undefined) return "None";
    if (typeof value === "boolean") return value ? "True" : "False";
    if (Array.isArray(value)) return `[${value.map(pythonLiteral).join(", ")}]`;
    if (typeof value === "object") {
      return `{${Object.entries(value).map(([k, v]) => `${pythonLiteral(k)}: ${pythonLiteral(v)}`).join(", ")}}`;
    }
    return JSON.stringify(value); // JSON's escapes are Python's
  }

  // Files that are fetched late ---------------------------------------------------------------------

  /** Run a classic script once. @param {string} url */
  function loadScript(url) {
    if (!scripts.has(url)) {
      const loaded = new Promise((resolve, reject) => {
        const failed = () => reject(new Error(`${url} could not be loaded`));
        document.head.append(h("script", { src: url, onload: resolve, onerror: failed }));
      });
      scripts.set(url, loaded);
      loaded.catch(() => scripts.delete(url)); // the next one may try again
    }
    return scripts.get(url);
  }

  /** Called by a weights script (host.py writes it) with a safetensors file in base64. */
  const registerWeights = (name, base64) => void shipped.set(name, base64);

  /** A checkpoint's bytes as a model, ready to use.
   * @param {DataView|Uint8Array} bytes */
  function openModel(bytes) {
    const { tensors, metadata } = GptEdu.readSafetensors(bytes);
    const model = new GptEdu.GPT(JSON.parse(metadata.config), tensors);
    const tokenizer = GptEdu.tokenizerFromDict(JSON.parse(metadata.tokenizer));
    const made = new Map(); // by seed, when it is asked for
    const untrained = (seed) => {
      if (!made.has(seed)) made.set(seed, GptEdu.untrained(model.config, seed));
      return made.get(seed);
    };
    return { model, tokenizer, config: model.config, untrained };
  }

  /** A shipped model, loaded once for the whole page.
   * @param {string} name @returns {Promise<ReturnType<typeof openModel>>} */
  function loadModel(name) {
    if (!models.has(name)) {
      const loading = (async () => {
        if (!BASE || !/^[\w.-]+$/.test(name)) throw new Error(`no model called “${name}” comes with this page`);
        await loadScript(`${BASE}../weights/${name}.js`);
        const binary = atob(shipped.get(name)), bytes = new Uint8Array(binary.length);
        for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
        shipped.delete(name);
        return openModel(bytes);
      })();
      models.set(name, loading);
      loading.catch(() => models.delete(name));
    }
    return models.get(name);
  }

  /** A recorded run of the page, loaded once; nothing in a notebook, where the kernel sends it.
   * @param {string} name @returns {Promise<any>} */
  async function loadRun(name) {
    if (!BASE) return undefined;
    if (!/^[\w.-]+$/.test(name)) throw new Error(`no recorded run “${name}” comes with this page`);
    await loadScript(`${BASE}../runs/${name}.js`);
    return runs.get(name);
  }

  // The view: what a widget's render gets -------------------------------------------------------------

  class View {
    /** @param {any} model anywidget's, or a StaticModel @param {HTMLElement} host */
    constructor(model, host) {
      this.model = model;
      this.host = host;
      this.el = h("div", { class: "gptedu-widget" });
      this.bound = new Set(); // the traits that a reader can change: what `python()` restores
      this.errors = new Map(); // task -> reason
      this.closers = [];
      this.tasks = [];
      this.closed = false;
      this.rendered = false;
      host.append(this.el);
    }

    // state

    get(trait) {
      return this.model.get(trait);
    }

    /** Change traits, for the kernel too. @param {Record<string, any>} changes */
    set(changes) {
      for (const [trait, value] of Object.entries(changes)) this.model.set(trait, value);
      this.model.save_changes();
    }

    on(event, f) {
      this.model.on(event, f);
      this.onClose(() => this.model.off(event, f));
    }

    /** The reader's own model where Python sent one, else the shipped one of the page.
     * @returns {Promise<ReturnType<typeof openModel>>} */
    async load() {
      const bytes = this.get("weights");
      return bytes?.byteLength ? openModel(bytes) : loadModel(this.get("model_name"));
    }

    /** A line of Python that restores what the reader sees. */
    python() {
      const own = this.get("weights")?.byteLength && !this.get("model_name");
      const words = own ? ["model=model", "tokenizer=tokenizer"] : [];
      for (const trait of this.bound) words.push(`${trait}=${pythonLiteral(this.get(trait))}`);
      return `${this.get("python")}(${words.join(", ")})`;
    }

    // life

    onClose(f) {
      this.closers.push(f);
    }

    close() {
      this.closed = true;
      for (const f of this.closers.splice(0)) f();
      this.el.remove();
    }

    /** Run `task` now, and again whenever a trait, the theme or the width changes. Many changes at
     * once are one run. Wait for it in `render` to be live only when the first picture is there. */
    draw(task) {
      const safe = this.guard(task);
      this.tasks.push(safe);
      return safe();
    }

    redraw() {
      if (!this.closed) for (const task of this.tasks) task();
    }

    watch() {
      let waiting = false;
      const soon = () => {
        if (waiting) return;
        waiting = true;
        queueMicrotask(() => ((waiting = false), this.redraw()));
      };
      this.on("change", soon);
      const now = () => {
        this.redraw(); // at once, because paper may be next
        // JupyterLab hides everything while it changes its theme: there was no width to draw for
        if (!this.el.clientWidth) requestAnimationFrame(() => this.redraw());
      };
      const theme = new MutationObserver(now);
      const attributeFilter = ["data-theme", "data-jp-theme-light", "data-jp-theme-name", "class"];
      for (const el of [document.documentElement, document.body]) theme.observe(el, { attributeFilter });
      let width = this.el.clientWidth;
      const size = new ResizeObserver(() => {
        if (Math.abs(this.el.clientWidth - width) < 1) return;
        width = this.el.clientWidth;
        this.redraw();
      });
      size.observe(this.el);
      this.onClose(() => (theme.disconnect(), size.disconnect()));
    }

    /** The same function, but what it throws is shown in the widget's own place, until it works. */
    guard(task) {
      const fine = (result) => (this.note(task, null), result);
      const failed = (error) => {
        if (error?.name !== "AbortError") this.note(task, error);
      };
      return (...given) => {
        if (this.closed) return undefined;
        try {
          const result = task(...given);
          return result instanceof Promise ? result.then(fine, failed) : fine(result);
        } catch (error) {
          return failed(error);
        }
      };
    }

    /** An async task whose newest call stops the older ones: task(signal, ...given). */
    latest(task) {
      let controller = new AbortController();
      this.onClose(() => controller.abort());
      return async (...given) => {
        controller.abort();
        controller = new AbortController();
        return task(controller.signal, ...given);
      };
    }

    /** Keep or forget why a task failed, and say so at the host. */
    note(task, error) {
      if (this.closed) return; // the host may have another view by now
      if (error) this.errors.set(task, String(error.message || error));
      else this.errors.delete(task);
      const [reason] = this.errors.values();
      this.host.toggleAttribute("data-gptedu-live", this.rendered && !reason);
      this.alert?.remove();
      this.host.removeAttribute("data-gptedu-error");
      if (!reason) return;
      this.host.setAttribute("data-gptedu-error", reason);
      this.alert = h("p", { class: "gptedu-error", role: "alert" }, `This widget stopped: ${reason}`);
      this.el.append(this.alert);
    }

    // layout

    add(...children) {
      this.el.append(...children);
    }

    row(...controls) {
      this.add(h("div", { class: "gptedu-row" }, controls));
    }

    /** The sentence that says what the picture shows; readers who listen hear it change. */
    status() {
      this.line = h("p", { class: "gptedu-status", role: "status", "aria-live": "polite" });
      this.add(this.line);
    }

    say(text) {
      if (!this.line) this.status();
      if (this.line.textContent !== text) this.line.textContent = text;
    }

    palette() {
      return palette(this.el);
    }

    // controls: each is bound to a trait, and follows it

    /** @returns {HTMLElement} */
    control(trait, label, input, extra = []) {
      this.bound.add(trait);
      const id = newId();
      // JupyterLab takes arrow keys and letters for itself unless the focused element says no
      build(input, { id, "data-lm-suppress-shortcuts": "true", "data-trait": trait }, []);
      return h("div", { class: "gptedu-control" }, h("label", { for: id }, label), input, extra);
    }

    /** Show a trait in its control now and after each change. */
    follow(trait, show) {
      show(this.get(trait));
      this.on(`change:${trait}`, () => show(this.get(trait)));
    }

    /** A slider from `min` to `max`, or over a list of `values`; `format` gives the words beside it;
     * `marks` are values with a tick.
     * @param {string} trait
     * @param {{label: string, min?: number, max?: number, step?: number, digits?: number,
     *   values?: any[], marks?: number[], format?: (value: any) => string}} options */
    slider(trait, { label, min = 0, max = 1, step = 1, digits = 0, values, marks, format }) {
      if (values) [min, max, step] = [0, values.length - 1, 1];
      const words = format ?? ((value) => (typeof value === "number" ? fixed(value, digits) : String(value)));
      const list = marks ? h("datalist", { id: newId() }, marks.map((value) => h("option", { value }))) : null;
      const input = h("input", { type: "range", min, max, step, list: list?.id });
      const ends = values ?? [min, max];
      const size = Math.max(...ends.map((value) => words(value).length));
      const output = h("output", { style: `min-width:${size + 0.5}ch`, "aria-hidden": "true" });
      input.addEventListener("input", () => {
        this.set({ [trait]: values ? values[Number(input.value)] : Number(input.value) });
      });
      const el = this.control(trait, label, input, [output, list]);
      this.follow(trait, (value) => {
        input.value = String(values ? values.indexOf(value) : value);
        output.textContent = words(value);
        input.setAttribute("aria-valuetext", words(value));
      });
      return el;
    }

    /** @param {string} trait @param {{label: string, options: (string|[any, string])[]}} options */
    select(trait, { label, options }) {
      const pairs = options.map((option) => (Array.isArray(option) ? option : [option, option]));
      const input = h("select", {}, pairs.map(([, text], i) => h("option", { value: i }, text)));
      input.addEventListener("change", () => this.set({ [trait]: pairs[Number(input.value)][0] }));
      const el = this.control(trait, label, input);
      this.follow(trait, (value) => (input.selectedIndex = pairs.findIndex(([one]) => one === value)));
      return el;
    }

    /** @param {string} trait @param {{label: string}} options */
    checkbox(trait, { label }) {
      const input = h("input", { type: "checkbox" });
      input.addEventListener("change", () => this.set({ [trait]: input.checked }));
      const el = this.control(trait, label, input);
      el.classList.add("gptedu-check");
      this.follow(trait, (value) => (input.checked = Boolean(value)));
      return el;
    }

    /** A line of text, or with `rows` a field that keeps line breaks. The trait follows once the reader pauses, or at Enter.
     * @param {string} trait
     * @param {{label: string, rows?: number, max?: number, wait?: number}} options */
    text(trait, { label, rows = 1, max = 10000, wait = 150 }) {
      const common = { maxlength: max, spellcheck: "false", autocomplete: "off", autocapitalize: "off" };
      const input = rows > 1 ? h("textarea", { rows, ...common }) : h("input", { type: "text", ...common });
      let timer = 0;
      const commit = () => {
        clearTimeout(timer);
        this.set({ [trait]: input.value });
      };
      input.addEventListener("input", () => {
        clearTimeout(timer);
        timer = setTimeout(commit, wait);
      });
      input.addEventListener("change", commit); // Enter, and leaving the field
      this.onClose(() => clearTimeout(timer));
      const el = this.control(trait, label, input);
      el.classList.add("gptedu-wide");
      this.follow(trait, (value) => {
        if (input.value !== value) input.value = value;
      });
      return el;
    }

    /** @param {string} label @param {() => any} action @param {Record<string, any>} [attributes] */
    button(label, action, attributes = {}) {
      const onclick = this.guard(action);
      const quiet = { type: "button", "data-lm-suppress-shortcuts": "true" };
      return h("button", { class: "gptedu-button", ...quiet, onclick, ...attributes }, label);
    }

    /** Save the picture, copy the state. */
    menu() {
      const name = `gptedu-${this.host.dataset.gpteduWidget}`;
      const note = h("span", { class: "gptedu-note", role: "status" });
      const copy = async () => {
        const line = this.python();
        const done = await navigator.clipboard?.writeText(line).then(() => true, () => false);
        note.replaceChildren(done ? "Copied: " : "Copy this: ", h("code", {}, line));
      };
      const items = h("div", { class: "gptedu-menu" }, [
        this.button("Save PNG", async () => download(`${name}.png`, await toPng(toSvg(this.el)))),
        this.button("Save SVG", () => download(`${name}.svg`, new Blob([toSvg(this.el).text], { type: "image/svg+xml" }))),
        this.button("Copy as Python", copy),
        note,
      ]);
      this.add(items);
    }

    // pictures

    /** A picture of your own: paint(width, palette) -> { height, children, label }. Call its `update`
     * in `draw`. Text keeps its size, because the picture is painted for the width that there is.
     * @param {(width: number, colours: ReturnType<typeof palette>) =>
     *   {height: number, children: any[], label: string}} paint */
    picture(paint) {
      const root = svg("svg", { class: "gptedu-picture", role: "img" });
      const el = h("div", { class: "gptedu-figure" }, root);
      const update = () => {
        const width = el.clientWidth || 340;
        const { height, children, label } = paint(width, this.palette());
        fit(root, width, height);
        root.setAttribute("aria-label", label);
        root.replaceChildren(...children);
      };
      return { el, root, update };
    }

    /** @param {ConstructorParameters<typeof Heatmap>[1]} options */
    heatmap(options) {
      return new Heatmap(this, options);
    }
  }

  function fit(root, width, height) {
    root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    root.setAttribute("width", width);
    root.setAttribute("height", height);
  }

  // Heat maps -------------------------------------------------------------------------------------

  const FONT = 12, GLYPH = 7.3; // px; the second is the width of one sign in the fixed-width font
  const LEVELS = 64; // shades; all cells of one shade are one path, which is quick and stays sharp
  const STEPS = {
    ArrowUp: ([i, j]) => [i - 1, j],
    ArrowDown: ([i, j]) => [i + 1, j],
    ArrowLeft: ([i, j]) => [i, j - 1],
    ArrowRight: ([i, j]) => [i, j + 1],
    Home: ([i]) => [i, 0],
    End: ([i], columns) => [i, columns - 1],
  };

  /** A matrix in colour. Hover, tap or arrow keys choose a cell; `onCell` hears of it. What is hidden
   * is hatched. */
  class Heatmap {
    /** @param {View} view
     * @param {{title?: string, kind?: "probability"|"signed", rowLabel?: string, columnLabel?: string,
     *   digits?: number, bar?: boolean, largest?: number,
     *   onCell?: (cell: {row: number, column: number, value: number, hidden: boolean}|null) => void}} options
     *   largest: of a cell, in px */
    constructor(view, options) {
      this.view = view;
      this.options = { title: "", kind: "probability", rowLabel: "query", columnLabel: "key",
        digits: 2, bar: true, largest: 44, ...options };
      this.cursor = svg("rect", { class: "gptedu-cursor", visibility: "hidden" });
      this.content = svg("g");
      this.root = svg("svg", { class: "gptedu-picture" }, this.content, this.cursor);
      this.el = h("div", { class: "gptedu-figure" }, this.root);
      this.hatch = newId();
      /** @type {[number, number]|null} */
      this.cell = null; // where the cursor is
      /** @type {[number, number]|null} */
      this.pinned = null; // where it goes back to
      if (options.onCell) this.listen();
      else this.root.setAttribute("role", "img");
    }

    listen() {
      const keys = "application"; // so that screen readers pass the arrow keys on
      build(this.root, { role: keys, tabindex: 0, "data-lm-suppress-shortcuts": "true" }, []);
      this.root.setAttribute("aria-roledescription", "heat map, arrow keys move from cell to cell");
      this.root.addEventListener("pointermove", (event) => this.choose(this.cellAt(event)));
      this.root.addEventListener("pointerleave", () => this.choose(this.pinned));
      this.root.addEventListener("click", (event) => this.choose((this.pinned = this.cellAt(event))));
      this.root.addEventListener("keydown", (event) => {
        if (event.key === "Escape") return this.choose((this.pinned = null));
        const step = STEPS[event.key];
        if (!step || !this.data) return undefined;
        event.preventDefault();
        const { rows, columns } = this.data;
        const [i, j] = this.cell ? step(this.cell, columns) : [0, 0];
        const within = (x, n) => Math.min(n - 1, Math.max(0, x));
        return this.choose((this.pinned = [within(i, rows), within(j, columns)]));
      });
    }

    /** Move the cursor, and tell `onCell`. */
    choose(cell) {
      if (String(cell) === String(this.cell)) return;
      this.select(cell);
      this.view.guard(this.options.onCell)(this.at(cell));
    }

    /** Move the cursor without telling: for maps that follow another one. */
    select(cell) {
      this.cell = cell && this.at(cell) ? cell : null;
      this.cursor.setAttribute("visibility", this.cell ? "visible" : "hidden");
      if (!this.cell) return;
      const { left, top, size } = this.layout;
      const [i, j] = this.cell;
      build(this.cursor, { x: left + j * size, y: top + i * size, width: size, height: size }, []);
    }

    at(cell) {
      if (!cell || !this.data) return null;
      const { values, rows, columns, hidden } = this.data;
      const [row, column] = cell;
      if (!(row >= 0 && row < rows && column >= 0 && column < columns)) return null;
      return { row, column, value: values[row * columns + column], hidden: hidden(row, column) };
    }

    cellAt(event) {
      if (!this.layout) return null;
      const box = this.root.getBoundingClientRect(), { left, top, size, width } = this.layout;
      const scale = width / box.width;
      const i = Math.floor(((event.clientY - box.top) * scale - top) / size);
      const j = Math.floor(((event.clientX - box.left) * scale - left) / size);
      return this.at([i, j]) ? [i, j] : null;
    }

    /** Show a matrix, row after row. `hidden(row, column)` is true where a mask hides the cell.
     * @param {{values: ArrayLike<number>, rowNames: string[], columnNames: string[],
     *   hidden?: (row: number, column: number) => boolean, limit?: number, label?: string}} data
     *   limit: the number at the end of the colours (1; for signed numbers the largest there is) */
    update({ values, rowNames, columnNames, hidden = () => false, limit, label }) {
      const rows = rowNames.length, columns = columnNames.length;
      if (values.length !== rows * columns) {
        throw new Error(`${values.length} numbers for a heat map of ${rows} by ${columns}`);
      }
      this.data = { values, rows, columns, rowNames, columnNames, hidden, limit: limit ?? this.ownLimit(values) };
      this.layout = this.measure();
      const { title, rowLabel, columnLabel } = this.options;
      const words = label ?? `${title || "heat map"}: ${rows} rows (${rowLabel}), ${columns} columns (${columnLabel})`;
      this.root.setAttribute("aria-label", words);
      fit(this.root, this.layout.width, this.layout.height);
      const colours = this.view.palette();
      this.content.replaceChildren(...this.cells(colours), ...this.names(), ...this.frame(colours));
      this.select(this.cell);
    }

    ownLimit(values) {
      if (this.options.kind === "probability") return 1;
      return Array.from(values).reduce((most, x) => (Number.isFinite(x) ? Math.max(most, Math.abs(x)) : most), 0) || 1;
    }

    /** Where everything goes, for the width that there is. */
    measure() {
      const { rows, columns, rowNames, columnNames } = this.data;
      const { title, bar, largest } = this.options;
      const room = this.el.clientWidth || 340;
      const longest = (names) => names.reduce((n, name) => Math.max(n, [...shorten(name)].length), 0);
      const left = 20 + GLYPH * longest(rowNames) + 6;
      const size = Math.min(largest, (room - left - 2) / columns);
      const upright = longest(columnNames) * GLYPH + 2 > size && longest(columnNames) > 1;
      const top = (title ? 22 : 0) + 18 + (upright ? GLYPH * longest(columnNames) : FONT) + 6;
      const bottom = top + rows * size;
      const width = Math.max(left + columns * size + 2, Math.min(room, left + 150));
      return { left, top, size, upright, bottom, width, height: bottom + (bar ? 34 : 4) };
    }

    /** One path for each shade, one for what is hidden, one for NaN; numbers where they fit. */
    cells(colours) {
      const { values, rows, columns, hidden, limit } = this.data;
      const { kind, digits } = this.options, { left, top, size } = this.layout;
      const gap = size > 8 ? 0.5 : 0, side = size - 2 * gap;
      /** @type {Map<string, string>} */
      const paths = new Map();
      const texts = [];
      for (let i = 0; i < rows; i++) {
        for (let j = 0; j < columns; j++) {
          const value = values[i * columns + j];
          const level = Math.round((LEVELS * value) / limit) / LEVELS;
          const fill = hidden(i, j) ? `url(#${this.hatch})` : Number.isNaN(value) ? colours.alarm : colours[kind](level);
          const d = `M${round(left + j * size + gap)} ${round(top + i * size + gap)}h${round(side)}v${round(side)}h${-round(side)}z`;
          paths.set(fill, (paths.get(fill) ?? "") + d);
          if (size < 34 || hidden(i, j)) continue;
          const place = { x: left + (j + 0.5) * size, y: top + (i + 0.5) * size + 4, "text-anchor": "middle" };
          const ink = fill[0] === "#" ? inkOn(fill) : colours.ink;
          texts.push(svg("text", { class: "gptedu-number", fill: ink, ...place }, fixed(value, digits)));
        }
      }
      const lines = svg("path", { d: "M-1 5L5 -1M-1 1L1 -1M3 5L5 3", class: "gptedu-hatch" });
      const pattern = svg("pattern", { id: this.hatch, width: 4, height: 4, patternUnits: "userSpaceOnUse" }, lines);
      return [svg("defs", {}, pattern), ...[...paths].map(([fill, d]) => svg("path", { fill, d })), ...texts];
    }

    /** Names of rows and columns, thinned out where they would touch. */
    names() {
      const { rowNames, columnNames } = this.data, { left, top, size, upright } = this.layout;
      const out = [];
      const step = Math.max(1, Math.ceil((FONT + 1) / size));
      for (let i = 0; i < rowNames.length; i += step) {
        const place = { x: left - 5, y: top + (i + 0.5) * size + 4, "text-anchor": "end" };
        out.push(svg("text", { class: "gptedu-token", ...place }, shorten(rowNames[i])));
      }
      for (let j = 0; j < columnNames.length; j += step) {
        const x = left + (j + 0.5) * size;
        const place = upright
          ? { transform: `translate(${x + 4} ${top - 5}) rotate(-90)` }
          : { x, y: top - 5, "text-anchor": "middle" };
        out.push(svg("text", { class: "gptedu-token", ...place }, shorten(columnNames[j])));
      }
      return out;
    }

    /** Title, names of the axes in the colour of what they are, colour bar. */
    frame(colours) {
      const { title, rowLabel, columnLabel, kind, bar } = this.options;
      const { left, top, size, bottom } = this.layout, { rows, columns, limit } = this.data;
      const own = (label) => colours[label] || colours.ink; // query, key, value
      const y = title ? 36 : 14;
      const out = [
        svg("text", { class: "gptedu-axis", fill: own(columnLabel), x: left, y }, columnLabel),
        svg("text", { class: "gptedu-axis", fill: own(rowLabel), transform: `translate(14 ${Math.min(bottom, top + 80)}) rotate(-90)` }, rowLabel),
      ];
      if (title) out.push(svg("text", { class: "gptedu-title", x: left, y: 14 }, title));
      if (rows && columns) {
        const box = { x: left, y: top, width: columns * size, height: rows * size };
        out.push(svg("rect", { class: "gptedu-frame", ...box }));
      }
      if (!bar) return out;
      const low = kind === "signed" ? -limit : 0, shades = 30;
      for (let i = 0; i < shades; i++) {
        const t = (i + 0.5) / shades, fill = colours[kind](kind === "signed" ? 2 * t - 1 : t);
        out.push(svg("rect", { class: "gptedu-shade", x: left + 3 * i, y: bottom + 12, width: 3, height: 8, fill }));
      }
      const end = (x, anchor, value) => svg("text", { class: "gptedu-number gptedu-muted", x, y: bottom + 32, "text-anchor": anchor }, value);
      const digits = Number.isInteger(limit) ? 0 : 2;
      out.push(end(left, "start", fixed(low, digits)), end(left + 3 * shades, "end", fixed(limit, digits)));
      return out;
    }
  }

  const round = (x) => Math.round(x * 100) / 100;
  const shorten = (name) => {
    const signs = [...visible(name)];
    return signs.length > 8 ? `${signs.slice(0, 7).join("")}…` : signs.join("");
  };

  // Numbers in words, and bars -----------------------------------------------------------------------

  const whole = (n) => (n === null ? "–" : n.toLocaleString("en"));
  const percent = (part, all) => `${fixed(all ? (100 * Number(part)) / Number(all) : 0, 1)} %`;

  /** A large number in four digits with a unit: 1,024 steps for bytes, 1,000 for all else. */
  function short(n, step, units) {
    if (n === null) return "–";
    let x = Number(n), i = 0;
    while (x >= step && i < units.length - 1) [x, i] = [x / step, i + 1];
    return `${i ? x.toPrecision(Math.max(3, String(Math.floor(x)).length)) : x} ${units[i]}`;
  }
  const inBytes = (n) => short(n, 1024, ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"]);
  const inFlops = (n) => short(n, 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"]);

  const BAR = 26, LETTER = 6.9; // px; the second is about the width of one sign

  /** One bar with its title and total. A part has its name inside, or where it is too small for that,
   * below, with a line that leads to it. */
  function drawBar({ title, total, parts }, top, width, colours) {
    const all = parts.reduce((n, part) => n + Number(part.size), 0);
    const heading = { y: top + 14, class: "gptedu-title" };
    const out = [svg("text", { x: 0, ...heading }, title), svg("text", { x: width, "text-anchor": "end", ...heading }, total)];
    if (!all) return [...out, svg("rect", { x: 0.5, y: top + 21, width: width - 1, height: BAR, class: "gptedu-frame" })];
    let x = 0;
    const outside = [];
    for (const { name, size, colour } of parts) {
      const wide = (width * Number(size)) / all, middle = x + wide / 2;
      const tip = svg("title", {}, `${name}: ${percent(size, all)}`);
      if (wide) out.push(svg("rect", { x, y: top + 21, width: Math.max(0.4, wide - (wide > 3 ? 1 : 0)), height: BAR, fill: colour }, tip));
      if (name.length * LETTER + 9 < wide) out.push(svg("text", { x: x + 5, y: top + 38, fill: inkOn(colour), "pointer-events": "none" }, name));
      else if (wide >= 2) outside.push({ name: name.replace(/ embedding$|^attention /, ""), middle });
      x += wide;
    }
    return [...out, ...labelsBelow(outside, top + 21 + BAR, width, colours)];
  }

  /** Names under their parts, moved aside where they would touch. */
  function labelsBelow(labels, y, width, colours) {
    let right = width; // from the last to the first, so that none leaves the picture
    for (const label of [...labels].reverse()) {
      label.wide = label.name.length * (LETTER - 0.7) + 7;
      label.x = Math.min(right - label.wide, label.middle - label.wide / 2);
      right = label.x;
    }
    let left = 0;
    return labels.flatMap((label) => {
      label.x = Math.max(left, label.x);
      left = label.x + label.wide;
      const d = `M${label.middle} ${y}V${y + 4}L${label.x + label.wide / 2} ${y + 9}`;
      const text = { x: label.x + label.wide / 2, y: y + 19, "text-anchor": "middle", class: "gptedu-number" };
      return [svg("path", { d, fill: "none", stroke: colours.muted }), svg("text", text, label.name)];
    });
  }

  // Saving ----------------------------------------------------------------------------------------

  const KEPT = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity", "visibility",
    "font-family", "font-size", "font-weight", "text-anchor", "white-space", "shape-rendering"];

  /** All pictures inside `root`, where they stand, as one SVG file with its colours written out.
   * @param {Element} root @returns {{text: string, width: number, height: number}} */
  function toSvg(root) {
    const pictures = [...root.querySelectorAll("svg.gptedu-picture")].filter((one) => one.clientWidth);
    if (!pictures.length) throw new Error("there is no picture to save yet");
    const boxes = pictures.map((one) => one.getBoundingClientRect());
    const x = Math.min(...boxes.map((box) => box.left)), y = Math.min(...boxes.map((box) => box.top));
    const width = Math.ceil(Math.max(...boxes.map((box) => box.right)) - x) + 16;
    const height = Math.ceil(Math.max(...boxes.map((box) => box.bottom)) - y) + 16;
    const paper = svg("rect", { width, height, fill: palette(root).paper });
    const whole = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height }, paper);
    pictures.forEach((picture, i) => {
      const copy = frozen(picture);
      build(copy, { x: boxes[i].left - x + 8, y: boxes[i].top - y + 8 }, []);
      build(copy, { width: boxes[i].width, height: boxes[i].height }, []);
      whole.append(copy);
    });
    const text = new XMLSerializer().serializeToString(whole);
    return { text: wellFormed(text).replace(/[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "\ufffd"), width, height };
  }

  /** A copy that needs no style sheet. */
  function frozen(picture) {
    const copy = picture.cloneNode(true);
    const originals = [picture, ...picture.querySelectorAll("*")];
    [copy, ...copy.querySelectorAll("*")].forEach((element, i) => {
      const style = getComputedStyle(originals[i]);
      element.setAttribute("style", KEPT.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
      for (const name of ["class", "tabindex", "role", "aria-roledescription", "data-lm-suppress-shortcuts"]) {
        element.removeAttribute(name);
      }
    });
    return copy;
  }

  /** @param {ReturnType<typeof toSvg>} file @returns {Promise<Blob>} */
  async function toPng({ text, width, height }) {
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    await image.decode();
    const canvas = h("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  }

  function download(name, blob) {
    const url = URL.createObjectURL(blob);
    h("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  // The two hosts ---------------------------------------------------------------------------------

  /** Put a widget into its host, and keep it there; returns what takes it away again. */
  function mount(definition, model, host) {
    /** @type {View} */
    let view;
    const start = async () => {
      view?.close();
      const mine = (view = new View(model, host));
      host.setAttribute("aria-busy", "true");
      mine.watch(); // from the start: a reader may type while the model loads
      await mine.guard(async () => {
        await definition.render(mine);
        mine.rendered = true;
      })();
      if (mine.closed) return;
      host.removeAttribute("aria-busy");
      if (!mine.rendered) mine.el.replaceChildren(mine.alert ?? ""); // not what was half built
      host.querySelector(":scope > .gptedu-fallback")?.toggleAttribute("hidden", mine.rendered);
    };
    start();
    for (const trait of ["weights", "model_name"]) model.on(`change:${trait}`, start); // another model
    return () => {
      for (const trait of ["weights", "model_name"]) model.off(`change:${trait}`, start);
      view.close();
    };
  }

  /** Register a widget. What it puts into GptEdu.widgets is what anywidget calls.
   * @param {string} name @param {{render: (view: View) => any}} definition */
  function widget(name, definition) {
    widgets[name] = {
      render({ model, el }) {
        el.setAttribute("data-gptedu-widget", name);
        return mount(definition, model, el);
      },
    };
  }

  /** Bring one place of the page to life, with what its stored output says. */
  async function revive(host) {
    const name = host.dataset.gpteduWidget;
    try {
      await Promise.all(["gpt.js", "tokenizer.js"].map((file) => loadScript(BASE + file)));
      if (!widgets[name] && /^\w+$/.test(name)) await loadScript(`${BASE}../${name}.js`);
      if (!widgets[name]) throw new Error(`there is no widget called “${name}”`);
      const state = host.querySelector('script[type="application/json"]');
      if (!state) throw new Error("the stored output has no state; run the notebook again");
      widgets[name].render({ model: new StaticModel(JSON.parse(state.textContent)), el: host });
    } catch (error) {
      host.setAttribute("data-gptedu-error", String(error.message || error));
      const words = `This widget could not start: ${error.message || error}`;
      host.append(h("p", { class: "gptedu-widget gptedu-error", role: "alert" }, words));
    }
  }

  /** Revive each widget when the reader comes near it.
   * @param {ParentNode} scope */
  function hydrate(scope = document) {
    const near = (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        observer.unobserve(target);
        revive(target);
      }
    };
    const observer = new IntersectionObserver(near, { rootMargin: "400px 0px" });
    for (const host of scope.querySelectorAll("[data-gptedu-widget]")) observer.observe(host);
  }

  Object.assign(GptEdu, {
    h, svg, visible, softmax, argmax, entropy, fixed, ramp, inkOn, palette, calm, pythonLiteral,
    whole, percent, short, inBytes, inFlops, drawBar,
    StaticModel, widget, hydrate, loadModel, openModel, registerWeights, loadRun, toSvg, toPng,
  });

  if (!BASE) return; // a notebook: anywidget calls render
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => hydrate());
  else hydrate();
})((globalThis.GptEdu ||= {}));
