// The tree of one version (format §4 and §5): searching and listing, newer messages before older ones.

import { columnsOf, Damaged, decoded, encoded } from "./arrow.js";

export const KINDS = { namespace: "B===", table: "C===", view: "D===" };
const BY_PREFIX = { "B===": "namespace", "C===": "table", "D===": "view", "E===": "transaction" };
/** Before every key, and behind all. */
const FIRST = "", LAST = "\u00ff\u00ff";

/** A node, as it lies in its file. `order` is that of the lakehouse. */
export function nodeOf(bytes, orderOf) {
  const { key, value, pnode, txn } = columnsOf(bytes);
  let start = 0;
  const system = {};
  while (start < key.length && (key[start] !== null || value[start] !== null)) {
    system[key[start]] = value[start];
    start += 1;
  }
  const order = orderOf(system);
  const count = Number(system.n_keys);
  if (start + order > key.length || !(count < order)) throw new Damaged("the table of a node is cut off");
  const rows = { keys: key.slice(start + 1, start + 1 + count), values: value.slice(start + 1, start + 1 + count) };
  const children = pnode.slice(start, start + 1 + count).filter((one) => one !== null).map(decoded);
  if (children.length && children.length !== count + 1) throw new Damaged("an inner node lacks a child");
  const buffer = [];
  const messages = new Map();
  for (let at = start + order; at < key.length; at += 1) {
    buffer.push({ key: key[at], value: value[at], transaction: txn[at] });
    messages.set(key[at], value[at]);
  }
  return { system, ...rows, children, buffer, messages, size: bytes.length };
}

export function keyOf(kind, name, widths) {
  const namespace = kind === "namespace" ? name.join(".") : name.slice(0, -1).join(".");
  const padded = (text, width) => encoded(text).padEnd(width, " ");
  return KINDS[kind] + padded(namespace, widths.namespace) + (kind === "namespace" ? "" : padded(name.at(-1), widths[kind]));
}

export function nameOf(key, widths) {
  const kind = BY_PREFIX[key.slice(0, 4)] ?? "unknown";
  const rest = key.slice(4);
  const trimmed = (text) => decoded(text.replace(/ +$/, ""));
  if (kind === "namespace") return { kind, name: trimmed(rest).split(".") };
  if (kind === "table" || kind === "view") {
    return { kind, name: [...trimmed(rest.slice(0, widths.namespace)).split("."), trimmed(rest.slice(widths.namespace))] };
  }
  return { kind, name: [trimmed(rest)] };
}

export class Tree {
  /** `load(path)` gives a node. */
  constructor(root, load) {
    this.root = root;
    this.load = load;
  }

  /** The location of the definition of a key; null if it is absent. */
  async find(key) {
    let node = this.root;
    for (let depth = 0; depth < 32; depth += 1) {
      if (node.messages.has(key)) return node.messages.get(key);
      const at = lowerBound(node.keys, key);
      if (node.keys[at] === key) return node.values[at];
      if (!node.children.length) return null;
      node = await this.load(node.children[at]);
    }
    throw new Damaged("the tree has no end");
  }

  /** Pairs of key and location from `start` on and before `end`, in the order of keys; reads as it is asked. */
  scan(start = FIRST, end = LAST) {
    return this.#walk(this.root, start, end, new Map(), 0);
  }

  async *#walk(node, start, end, above, depth) {
    if (depth > 32) throw new Damaged("the tree has no end");
    const messages = new Map(node.messages);
    for (const [key, value] of above) messages.set(key, value);
    const waiting = [...messages.keys()].filter((key) => key >= start && key < end).sort(compare);
    if (!node.children.length) {
      yield* this.#leaf(node, waiting, messages, start, end);
      return;
    }
    for (let at = 0; at <= node.keys.length; at += 1) {
      const from = at ? node.keys[at - 1] : FIRST, to = at < node.keys.length ? node.keys[at] : LAST;
      if (to > start && from < end) {
        const below = new Map(waiting.filter((key) => key > from && key < to).map((key) => [key, messages.get(key)]));
        yield* this.#walk(await this.load(node.children[at]), start, end, below, depth + 1);
      }
      if (at < node.keys.length && to >= start && to < end) {
        const value = messages.has(to) ? messages.get(to) : node.values[at];
        if (value !== null) yield [to, value];
      }
      if (to >= end) return;
    }
  }

  *#leaf(node, waiting, messages, start, end) {
    let at = lowerBound(node.keys, start), next = 0;
    while (true) {
      const row = at < node.keys.length && node.keys[at] < end ? node.keys[at] : null;
      const message = next < waiting.length ? waiting[next] : null;
      if (row === null && message === null) return;
      const key = row === null || (message !== null && message < row) ? message : row;
      const value = key === message ? messages.get(key) : node.values[at];
      if (key === message) next += 1;
      if (key === row) at += 1;
      if (value !== null) yield [key, value];
    }
  }
}

function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

function lowerBound(keys, key) {
  let low = 0, high = keys.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (keys[middle] < key) low = middle + 1;
    else high = middle;
  }
  return low;
}
