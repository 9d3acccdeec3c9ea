/* heads.js: the head-split explorer. A matrix whose numbers count along memory, the heads that it is cut
 * into, and one number that is followed from the one to the other. */
(function (GptEdu) {
  "use strict";
  const { svg } = GptEdu;

  const WAYS = {
    right: "view(T, H, D), then transpose",
    wrong: "view(H, T, D) alone",
    dealt: "view(T, D, H), every H-th number",
  };
  const TINTS = ["#8ecae9", "#f4c15d", "#dba3c4", "#c9c9c9"]; // one a head; dark ink is legible on all
  const INK = "#22242a", MOST = 6, WIDEST = 16; // positions, numbers of a row

  // Arithmetic: pure ------------------------------------------------------------------------------

  /** @typedef {{way: string, positions: number, heads: number, size: number}} State */

  /** Where number n of the matrix ends. @param {State} state @param {number} n */
  function place({ way, positions: T, heads: H, size: D }, n) {
    const C = H * D, t = Math.floor(n / C), c = n % C;
    if (way === "right") return { head: Math.floor(c / D), position: t, index: c % D };
    if (way === "dealt") return { head: c % H, position: t, index: Math.floor(c / H) };
    return { head: Math.floor(n / (T * D)), position: Math.floor(n / D) % T, index: n % D };
  }

  /** How many numbers stand at a position that is not theirs. @param {State} state */
  const strays = (state) => {
    const C = state.heads * state.size, all = Array.from({ length: state.positions * C }, (_, n) => n);
    return all.filter((n) => place(state, n).position !== Math.floor(n / C)).length;
  };

  // Words -----------------------------------------------------------------------------------------

  function sentence(state, n) {
    const { positions: T, heads: H, size: D, way } = state, C = H * D, lost = strays(state);
    const at = place(state, n), from = Math.floor(n / C);
    const where = `Number ${n} is column ${n % C} of position ${from}; it ends in head ${at.head + 1} at position ${at.position}, column ${at.index}`;
    const fit = at.position === from ? ", its own position." : ", which is not its own.";
    const whole = `All heads together have the shape (${H}, ${T}, ${D}).`;
    if (lost) return `${where}${fit} ${whole} ${lost} of ${T * C} numbers stand at another position than before.`;
    if (way === "dealt" && H > 1 && D > 1) return `${where}${fit} ${whole} No number has left its position, but a head holds every ${H === 2 ? "second" : H === 3 ? "third" : "fourth"} column, not ${D} in a row.`;
    return `${where}${fit} ${whole} No number has left its position, and each head holds ${D === 1 ? "one column" : `${D} columns in a row`}.`;
  }

  // Drawing -----------------------------------------------------------------------------------------

  const LEFT = 26, GAP = 14; // px: names of positions; between heads

  /** One cell. `n` says which number it shows, for the pointer. */
  function cell(n, head, x, y, side, chosen, ink) {
    const frame = chosen ? { stroke: ink, "stroke-width": 3 } : { stroke: "none" };
    return [
      svg("rect", { "data-n": n, x: x + 1, y: y + 1, width: side - 2, height: side - 2, rx: 2, fill: TINTS[head], ...frame }),
      svg("text", { class: "gptedu-number", x: x + side / 2, y: y + side / 2 + 4, fill: INK, "text-anchor": "middle", "pointer-events": "none", "font-weight": chosen ? 700 : 400 }, String(n)),
    ];
  }

  /** @param {State} state @param {number} chosen */
  function paint(state, chosen, width, colours) {
    const { positions: T, heads: H, size: D } = state, C = H * D;
    const side = Math.min(30, (width - LEFT - 3 * GAP) / WIDEST); // the same for all shapes: nothing jumps
    const second = 26 + T * side + 30, height = 86 + 2 * MOST * side, out = [], last = [];
    const title = (words, y) => svg("text", { class: "gptedu-title", x: 0, y }, words);
    const name = (words, x, y, anchor) => svg("text", { class: "gptedu-number gptedu-muted", x, y, "text-anchor": anchor }, words);
    out.push(title(`Before: ${T} positions, rows of ${C} numbers`, 14), title("After: the heads", second));
    for (let t = 0; t < T; t++) {
      for (const top of [26, second + 26]) out.push(name(String(t), LEFT - 8, top + (t + 0.5) * side + 4, "end"));
    }
    for (let h = 0; h < H; h++) out.push(name(D * side < 40 ? String(h + 1) : `head ${h + 1}`, LEFT + h * (D * side + GAP) + (D * side) / 2, second + 20, "middle"));
    for (let n = 0; n < T * C; n++) {
      const at = place(state, n), pile = n === chosen ? last : out; // the chosen one lies on top
      pile.push(cell(n, at.head, LEFT + (n % C) * side, 26 + Math.floor(n / C) * side, side, n === chosen, colours.ink));
      const x = LEFT + at.head * (D * side + GAP) + at.index * side;
      pile.push(cell(n, at.head, x, second + 26 + at.position * side, side, n === chosen, colours.ink));
    }
    const label = `${T} rows of ${C} numbers, and the ${H} heads that they are cut into. Arrow keys choose a number.`;
    return { height, children: [...out, ...last].flat(), label };
  }

  // The widget --------------------------------------------------------------------------------------

  GptEdu.widget("heads", {
    async render(view) {
      const state = () => Object.fromEntries(["way", "positions", "heads", "size"].map((trait) => [trait, view.get(trait)]));
      const count = () => view.get("positions") * view.get("heads") * view.get("size");
      const chosen = () => Math.min(view.get("number"), count() - 1);
      view.row(
        view.select("way", { label: "Cut", options: Object.entries(WAYS) }),
        view.slider("positions", { label: "Positions T", min: 1, max: MOST }),
        view.slider("heads", { label: "Heads H", min: 1, max: 4 }),
        view.slider("size", { label: "Head size D", min: 1, max: 4 }),
      );
      view.bound.add("number");
      const picture = view.picture((width, colours) => paint(state(), chosen(), width, colours));
      const { root } = picture;
      root.setAttribute("role", "application"); // so that screen readers pass the arrow keys on
      root.setAttribute("tabindex", "0");
      root.setAttribute("data-lm-suppress-shortcuts", "true");
      const follow = (event) => {
        const n = event.target.getAttribute?.("data-n");
        if (n !== null && n !== undefined) view.set({ number: Number(n) });
      };
      root.addEventListener("pointermove", follow);
      root.addEventListener("click", follow);
      root.addEventListener("keydown", (event) => {
        const C = view.get("heads") * view.get("size");
        const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -C, ArrowDown: C, Home: -Infinity, End: Infinity };
        if (!(event.key in steps)) return;
        event.preventDefault();
        const next = chosen() + steps[event.key], within = Math.abs(steps[event.key]) !== C || (next >= 0 && next < count());
        if (within) view.set({ number: Math.min(count() - 1, Math.max(0, next)) });
      });
      view.add(picture.el);
      view.status();
      view.menu();
      await view.draw(() => {
        picture.update();
        view.say(sentence(state(), chosen()));
      });
    },
  });

  GptEdu.headSplit = { place, strays };
})((globalThis.GptEdu ||= {}));
