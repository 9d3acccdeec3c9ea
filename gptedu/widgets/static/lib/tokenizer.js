/* tokenizer.js: text to ids and back, equal to Python's CharTokenizer and BPETokenizer.
 *
 *   const tokenizer = GptEdu.tokenizerFromDict(saved);      saved: what Python's to_dict() gave
 *   tokenizer.encode(text) -> ids;  tokenizer.decode(ids) -> text;  tokenizer.vocabSize
 *   tokenizer.piece(id)    -> what one id stands for, to be shown (bytes that are no text: <F0>)
 *   tokenizer.usable(text) -> { text, dropped }: the text without what the tokenizer cannot encode
 *   bpe.merging(text)      -> every merge in turn, for a stepper:
 *                             [{ pair, id, count, words: number[][] }, ...]; the first has pair null
 *   GptEdu.splitWords(text) -> the pieces that no merge may cross
 */
(function (GptEdu) {
  "use strict";

  // GPT-2's words. White_Space is what Python's \s means; JavaScript's own \s differs in two signs.
  const SPACE = "\\p{White_Space}";
  const WORDS = new RegExp(
    `'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|${SPACE}+(?!\\P{White_Space})|${SPACE}+`,
    "gu",
  );

  /** @param {string} text @returns {string[]} */
  const splitWords = (text) => text.match(WORDS) ?? [];

  // Ids 0 to 255 in GPT-2's order: first the bytes that Latin-1 can print, then the others.
  const printable = (byte) => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  const ALL_BYTES = [...Array(256).keys()];
  const BYTES = [...ALL_BYTES.filter(printable), ...ALL_BYTES.filter((byte) => !printable(byte))];
  const BYTE_IDS = ALL_BYTES.map((byte) => BYTES.indexOf(byte));

  const hex = (byte) => byte.toString(16).toUpperCase().padStart(2, "0");
  const codePoint = (symbol) => `U+${symbol.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

  /** The ids with `newId` in place of every pair (a, b), from left to right. */
  function merge(ids, a, b, newId) {
    const out = [];
    for (let i = 0; i < ids.length; i++) {
      const found = ids[i] === a && ids[i + 1] === b;
      out.push(found ? newId : ids[i]);
      if (found) i++;
    }
    return out;
  }

  class CharTokenizer {
    /** @param {string} symbols  in the order of their ids */
    constructor(symbols) {
      this.vocab = [...symbols];
      this.ids = new Map(this.vocab.map((symbol, id) => [symbol, id]));
    }

    get vocabSize() {
      return this.vocab.length;
    }

    /** @param {string} text @returns {number[]} */
    encode(text) {
      return [...text].map((symbol, at) => {
        const id = this.ids.get(symbol);
        if (id === undefined) {
          throw new Error(`“${symbol}” (${codePoint(symbol)}) at index ${at} is not in the vocabulary`);
        }
        return id;
      });
    }

    /** @param {Iterable<number>} ids @returns {string} */
    decode(ids) {
      return Array.from(ids, (id) => this.piece(id)).join("");
    }

    piece(id) {
      if (!(id in this.vocab)) throw new Error(`id ${id} is not in the vocabulary of ${this.vocabSize}`);
      return this.vocab[id];
    }

    usable(text) {
      const known = [...text].filter((symbol) => this.ids.has(symbol));
      const dropped = [...new Set(text)].filter((symbol) => !this.ids.has(symbol));
      return { text: known.join(""), dropped };
    }
  }

  class BPETokenizer {
    /** @param {[number, number][]} merges  id 256 + i is what merges[i] joins */
    constructor(merges) {
      this.merges = merges;
      this.bytes = BYTES.map((byte) => [byte]);
      /** @type {Map<string, number>} */
      this.newIds = new Map();
      /** @type {Map<string, number[]>} words met so far: text repeats itself */
      this.encoded = new Map();
      merges.forEach(([a, b], i) => {
        this.bytes.push([...this.bytes[a], ...this.bytes[b]]);
        this.newIds.set(`${a},${b}`, 256 + i);
      });
    }

    get vocabSize() {
      return this.bytes.length;
    }

    /** @param {string} text @returns {number[]} */
    encode(text) {
      return splitWords(checked(text)).flatMap((word) => {
        if (!this.encoded.has(word)) this.encoded.set(word, this.mergeAll(byteIds(word)));
        return this.encoded.get(word);
      });
    }

    /** The id of the earliest merge that the ids still allow, or Infinity. */
    nextMerge(ids) {
      let first = Infinity;
      for (let i = 1; i < ids.length; i++) {
        first = Math.min(first, this.newIds.get(`${ids[i - 1]},${ids[i]}`) ?? Infinity);
      }
      return first;
    }

    mergeAll(ids) {
      for (;;) {
        const id = this.nextMerge(ids);
        if (id === Infinity) return ids;
        ids = merge(ids, ...this.merges[id - 256], id);
      }
    }

    /** Every merge of a text, earliest first, each in all words at once. It ends where `encode` does.
     * @param {string} text */
    merging(text) {
      let words = splitWords(checked(text)).map(byteIds);
      const steps = [{ pair: null, id: null, count: 0, words }];
      const size = (list) => list.reduce((n, ids) => n + ids.length, 0);
      for (;;) {
        const id = words.reduce((first, ids) => Math.min(first, this.nextMerge(ids)), Infinity);
        if (id === Infinity) return steps;
        const pair = this.merges[id - 256], before = size(words);
        words = words.map((ids) => merge(ids, ...pair, id));
        steps.push({ pair, id, count: before - size(words), words });
      }
    }

    /** @param {Iterable<number>} ids @returns {string} */
    decode(ids) {
      const bytes = Array.from(ids).flatMap((id) => this.bytesOf(id));
      return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
    }

    bytesOf(id) {
      if (!(id in this.bytes)) throw new Error(`id ${id} is not in the vocabulary of ${this.vocabSize}`);
      return this.bytes[id];
    }

    piece(id) {
      try {
        const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
        return decoder.decode(Uint8Array.from(this.bytesOf(id)));
      } catch (error) {
        if (!(error instanceof TypeError)) throw error;
        return this.bytes[id].map((byte) => `<${hex(byte)}>`).join("");
      }
    }

    usable(text) {
      const whole = [...text].filter((symbol) => !isSurrogate(symbol));
      const dropped = [...new Set(text)].filter(isSurrogate);
      return { text: whole.join(""), dropped };
    }
  }

  const isSurrogate = (symbol) => /^[\ud800-\udfff]$/.test(symbol);
  const byteIds = (word) => Array.from(new TextEncoder().encode(word), (byte) => BYTE_IDS[byte]);

  /** The same text; an error where half of a surrogate pair stands in it, as UTF-8 has none. */
  function checked(text) {
    const half = [...text].find(isSurrogate);
    if (half) throw new Error(`the lone surrogate ${codePoint(half)} is half a character`);
    return text;
  }

  /** The tokenizer that Python's to_dict() described.
   * @param {{kind: string, symbols?: string, merges?: [number, number][]}} saved */
  function tokenizerFromDict(saved) {
    if (saved.kind === "character") return new CharTokenizer(saved.symbols);
    if (saved.kind === "bpe") return new BPETokenizer(saved.merges);
    throw new Error(`no tokenizer: “${saved.kind}” is neither “character” nor “bpe”`);
  }

  Object.assign(GptEdu, { CharTokenizer, BPETokenizer, tokenizerFromDict, splitWords });
})((globalThis.GptEdu ||= {}));
