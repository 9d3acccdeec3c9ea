/* A widget for the tests only: a map of weights for own text, a slider, a box, a choice. */
GptEdu.widget("demo", {
  async render(view) {
    const { h } = GptEdu;
    view.row(
      view.text("text", { label: "Text", max: 40 }),
      view.slider("temperature", { label: "Temperature", min: 0.1, max: 2, step: 0.1, digits: 1, marks: [1] }),
      view.slider("layer", { label: "Layer", values: [1, 2] }),
      view.select("kind", { label: "Colours", options: ["probability", ["signed", "with a sign"]] }),
      view.checkbox("causal", { label: "Causal" }),
      view.button("Fail", () => {
        throw new Error("as asked");
      }),
    );
    if (view.get("text") === "break") throw new Error("broken on purpose");
    const { model, tokenizer, untrained } = await view.load();
    const words = (cell) => `${GptEdu.visible(view.get("text"))}: ${cell ? `${cell.row},${cell.column} ${GptEdu.fixed(cell.value, 3)}` : "no cell"}`;
    const map = view.heatmap({ title: "Weights", onCell: (cell) => view.say(words(cell)) });
    view.add(map.el);
    const picture = view.picture((width, colours) => ({
      height: 30,
      label: "a line",
      children: [GptEdu.svg("text", { x: 5, y: 20, fill: colours.query }, GptEdu.visible(view.get("text")))],
    }));
    view.add(picture.el, h("p", { class: "demo-html" }, view.get("text")));
    view.status();
    view.menu();
    view.before = untrained();
    const show = view.latest(async (signal) => {
      const { text, dropped } = tokenizer.usable(view.get("text"));
      const ids = tokenizer.encode(text).slice(0, 12);
      if (!ids.length) throw new Error("type something");
      const { attention } = await model.trace(ids, { signal });
      const names = ids.map((id) => tokenizer.piece(id));
      const causal = view.get("causal");
      map.update({
        values: attention[view.get("layer") - 1].subarray(0, ids.length ** 2).map((w) => w ** (1 / view.get("temperature"))),
        rowNames: names,
        columnNames: names,
        hidden: (row, column) => causal && column > row,
      });
      picture.update();
      view.say(`${ids.length} tokens, ${dropped.length} dropped, layer ${view.get("layer")}`);
    });
    await view.draw(show);
  },
});
