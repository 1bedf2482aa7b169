// The data of a lakehouse out of its files, fetched over HTTP: the same questions as to a server, and the same answers.

import { Refused } from "../server.js";
import { Damaged, decoded } from "./arrow.js";
import { changesBetween, transactionsOf } from "./changes.js";
import { lakehouseOf, namespaceOf, tableOf, viewOf } from "./definitions.js";
import { describe, parsed } from "./metadata.js";
import { KINDS, keyOf, nameOf, nodeOf, Tree } from "./tree.js";

/** Nodes that are kept, and how many one search looks at before it asks whether to go on. */
const MAX_NODES = 400, MAX_SEARCHED = 40;
/** Roots that are asked for in search of the newest, beyond the one that the hint names. */
const MAX_STEPS = 70;
const PAGE = 500, LOG = 25;
/** Of a data file on a server that knows no ranges. */
const MAX_WHOLE = 16 << 20;

export class FilesSource {
  /** `root` is the address of the root, with a slash at its end. */
  constructor(root) {
    this.root = root;
    this.token = "";
    this.nodes = new Map();
    this.newest = null;
    this.requests = 0;
  }

  async lakehouse(signal) {
    const version = await this.#latest(signal);
    const node = await this.#rootOf(version, signal);
    const found = this.definition;
    const snapshots = Object.entries(found.snapshots).map(([name, path]) => [name, versionOf(path)]);
    return {
      name: found.name, principal: "", version, "created-at-millis": Number(node.system.created_at_millis), "oldest-version": 0,
      "reads-everything": true, uri: this.root.href, properties: found.properties,
      snapshots: Object.fromEntries(snapshots.filter(([, one]) => one !== null)),
      may: { rows: true, sql: false, tree: true, upkeep: false, transactions: false, counts: false, history: false },
    };
  }

  async address(address, signal) {
    const [, kind, value] = /^@(version|snapshot|timestamp)\/(.+)$/.exec(address) ?? [];
    if (!kind) throw new Refused(404, "There is no such address.");
    const at = kind === "timestamp" ? `version~${await this.#versionAt(Date.parse(value), signal)}` : `${kind}~${value}`;
    const version = await this.#versionOfState(at, signal);
    const node = await this.#rootOf(version, signal);
    return { prefix: at, version, "created-at-millis": Number(node.system.created_at_millis) };
  }

  async namespaces(at, parent, next, signal) {
    const tree = await this.#tree(at, signal);
    const above = parent.length ? `${keyOf("namespace", parent, { namespace: 0 })}.` : KINDS.namespace;
    let start = next ?? above;
    const items = [];
    while (items.length < PAGE) {
      const { value: found } = await tree.scan(start, `${above}\u00ff`).next();
      if (!found) break;
      const child = decoded(found[0].slice(above.length).replace(/ +$/, "")).split(".")[0];
      items.push([...parent, child]);
      // What is nested in it comes after its own key, and before what begins with the next character after a dot.
      const key = keyOf("namespace", [...parent, child], { namespace: 0 });
      const nested = await tree.scan(`${key}.`, `${key}/`).next();
      const own = keyOf("namespace", [...parent, child], this.definition.widths);
      start = nested.value ? `${key}/` : `${found[0] > own ? found[0] : own}\u0000`;
    }
    if (parent.length && !items.length && next === undefined) await this.#require(tree, "namespace", parent);
    return { items, next: items.length < PAGE ? undefined : start };
  }

  async objects(at, kind, namespace, next, signal) {
    const tree = await this.#tree(at, signal);
    const prefix = keyOf(kind, [...namespace, ""], { ...this.definition.widths, [kind]: 0 });
    const items = [];
    let last;
    for await (const [key] of tree.scan(next ?? prefix, `${prefix}\u00ff`)) {
      if (!key.startsWith(prefix)) break;
      items.push(nameOf(key, this.definition.widths).name);
      last = key;
      if (items.length === PAGE) break;
    }
    return { items, next: items.length < PAGE ? undefined : `${last}\u0000` };
  }

  async namespace(at, name, signal) {
    const tree = await this.#tree(at, signal);
    return namespaceOf(await this.#definition(tree, "namespace", name, signal));
  }

  async table(at, name, signal) {
    const [table, metadata] = await this.#tableOf(at, name, signal);
    try {
      return describe(name, table, metadata);
    } catch (error) {
      throw new Damaged(`the metadata of the table is damaged: ${error.message}`);
    }
  }

  /** What reads them is loaded when somebody asks for rows. */
  async rows(at, name, limit, signal) {
    const { firstRows } = await import("./rows.js");
    const [, metadata] = await this.#tableOf(at, name, signal);
    if (metadata === null) throw new Refused(501, "Rows of a table that lies elsewhere are not read without a server.");
    return firstRows({
      metadata, limit,
      whole: (location) => this.#fetch(this.#pathIn(location), signal),
      part: (location, start, end) => this.#part(this.#pathIn(location), start, end, signal),
    });
  }

  /** The definition of a table, and Iceberg's metadata; null for a table that lies elsewhere. */
  async #tableOf(at, name, signal) {
    const tree = await this.#tree(at, signal);
    const table = tableOf(await this.#definition(tree, "table", name, signal));
    const path = table.format.metadata_location;
    if (table.type !== "managed" || !path) return [table, null];
    let bytes = await this.#fetch(path, signal);
    if (path.endsWith(".gz.metadata.json")) bytes = await unzipped(bytes);
    try {
      return [table, parsed(new TextDecoder().decode(bytes))];
    } catch (error) {
      throw new Damaged(`the metadata of the table is damaged: ${error.message}`);
    }
  }

  /** Where a location of Iceberg's metadata lies below the root, of which the definition tells all names. */
  #pathIn(location) {
    const plain = String(location).replace(/^s3a:/, "s3:").replace(/^file:(\/\/localhost)?\/(?!\/)/, "file:///");
    const root = this.definition.roots.find((one) => plain.startsWith(one));
    if (!root) throw new Refused(501, "A file of this table lies outside of the lakehouse, where this page does not look.");
    return plain.slice(root.length);
  }

  async view(at, name, signal) {
    const tree = await this.#tree(at, signal);
    return viewOf(await this.#definition(tree, "view", name, signal));
  }

  async search(at, text, namespace, next, signal) {
    const tree = await this.#tree(at, signal);
    const wanted = text.toLowerCase(), within = namespace?.join(".");
    const found = [];
    const before = this.requests;
    for await (const [key] of tree.scan(next ?? KINDS.namespace, "E===")) {
      const one = nameOf(key, this.definition.widths);
      const own = within === undefined ? one.name.join(".") : one.name.at(-1);
      const isInside = within === undefined || (one.kind !== "namespace" && one.name.slice(0, -1).join(".") === within);
      if (isInside && own.toLowerCase().includes(wanted)) found.push(one);
      if (found.length === 50 || this.requests - before > MAX_SEARCHED) return { found, next: `${key}\u0000` };
    }
    return { found, next: null };
  }

  async log(before, text, signal) {
    const newest = await this.#latest(signal);
    const entries = [];
    const wanted = text.toLowerCase();
    let version = Math.min(before ?? Infinity, newest + 1) - 1;
    const names = await this.#snapshots(signal);
    const last = Math.max(version - LOG + 1, 0);
    const roots = await Promise.all(range(last, version).map((one) => this.#rootOf(one, signal).catch((error) => {
      if (error.name === "AbortError") throw error;
      return null;
    })));
    for (; version >= last; version -= 1) {
      const root = roots[version - last];
      if (root === null) return { entries, next: null, "oldest-version": version + 1 };
      const entry = {
        version, "created-at-millis": Number(root.system.created_at_millis), problem: "",
        "rollback-from": root.system.rollback_from_root ? versionOf(decoded(root.system.rollback_from_root)) : null,
        ...transactionsOf(root, this.definition.widths), snapshots: names.get(version) ?? [],
      };
      if (!wanted || JSON.stringify(entry).toLowerCase().includes(wanted)) entries.push(entry);
    }
    return { entries, next: last > 0 ? last : null, "oldest-version": 0 };
  }

  async diff(from, to, start, signal) {
    const rootOf = (version) => this.#rootOf(version, signal);
    const treeOf = async (version) => new Tree(await rootOf(version), (path) => this.#node(path, signal));
    const changes = await changesBetween(from, to, rootOf, treeOf, this.definition.widths);
    return { from, to, changes, next: null };
  }

  async tree(at, way, signal) {
    let node = (await this.#tree(at, signal)).root;
    for (const step of way ? way.split(".").map(Number) : []) {
      if (!node.children[step]) throw new Refused(404, "The tree of this version has no such node.");
      node = await this.#node(node.children[step], signal);
    }
    const named = (key) => nameOf(key, this.definition.widths);
    return {
      at: way, path: node.path, height: Number(node.system.height ?? 0), "size-bytes": node.size, "n-keys": node.keys.length,
      "n-children": node.children.length, "n-messages": node.buffer.length, children: node.children.slice(0, 512),
      keys: node.keys.slice(0, 200).map(named), separators: node.children.length ? node.keys.slice(0, 512).map(named) : [],
      messages: node.buffer.slice(-200).map((one) => ({ ...named(one.key), removes: one.value === null })),
    };
  }

  async #require(tree, kind, name) {
    if ((await tree.find(keyOf(kind, name, this.definition.widths))) === null) {
      throw new Refused(404, `There is no ${kind} ${name.join(".")} in this version.`);
    }
  }

  async #definition(tree, kind, name, signal) {
    const key = keyOf(kind, name, this.definition.widths);
    const location = await tree.find(key);
    if (location === null) throw new Refused(404, `There is no ${kind} ${name.join(".")} in this version.`);
    return this.#fetch(decoded(location), signal);
  }

  async #tree(at, signal) {
    const root = await this.#rootOf(await this.#versionOfState(at, signal), signal);
    return new Tree(root, (path) => this.#node(path, signal));
  }

  async #versionOfState(at, signal) {
    if (at === "latest") return this.newest ?? this.#latest(signal);
    const [kind, value] = [at.slice(0, at.indexOf("~")), at.slice(at.indexOf("~") + 1)];
    if (kind === "version") return Number(value);
    if (!this.definition) await this.lakehouse(signal);
    const version = versionOf(this.definition.snapshots[value] ?? "");
    if (version === null) throw new Refused(404, `There is no snapshot ${value}.`);
    return version;
  }

  async #snapshots(signal) {
    if (!this.definition) await this.lakehouse(signal);
    const names = new Map();
    for (const [name, path] of Object.entries(this.definition.snapshots)) {
      names.set(versionOf(path), [...(names.get(versionOf(path)) ?? []), name]);
    }
    return names;
  }

  /** The newest version (format §7), as far as that can be found without listing: from the hint upwards. */
  async #latest(signal) {
    let low = this.newest;
    if (low === null) {
      const hint = await this.#fetch("_latest_hint.txt", signal, true).catch(notFound);
      const text = hint === null ? "" : new TextDecoder().decode(hint).trim();
      low = /^\d{1,15}$/.test(text) ? Number(text) : 0;
      for (let step = 0; !(await this.#exists(low, signal)); step += 1) {
        if (step === MAX_STEPS) throw new Refused(404, "There is no lakehouse here, or its hint is too old to find the newest version.");
        low += 1;
      }
    }
    let step = 1;
    while (await this.#exists(low + step, signal)) {
      low += step;
      step *= 2;
    }
    let high = low + step;
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (await this.#exists(middle, signal)) low = middle;
      else high = middle;
    }
    if (low !== this.newest) {
      const root = await this.#rootOf(low, signal);
      this.definition = await this.#lakehouse(root, signal);
      this.newest = low;
    }
    return low;
  }

  /** The newest version of a moment, by bisection: times ascend with versions, and what has expired is too old. */
  async #versionAt(millis, signal) {
    if (Number.isNaN(millis)) throw new Refused(400, "That is no time.");
    const timeOf = async (version) => {
      const root = await this.#rootOf(version, signal).catch(notFound);
      return root === null ? -Infinity : Number(root.system.created_at_millis);
    };
    let low = -1, high = (await this.#latest(signal)) + 1;
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if ((await timeOf(middle)) <= millis) low = middle;
      else high = middle;
    }
    if (low < 0 || (await timeOf(low)) === -Infinity) throw new Refused(404, "There was no version at that time, or it has expired.");
    return low;
  }

  async #lakehouse(root, signal) {
    const inline = root.system.lakehouse_def_inline;
    if (inline) return lakehouseOf(Uint8Array.from(inline.match(/../g) ?? [], (one) => Number.parseInt(one, 16)));
    return lakehouseOf(await this.#fetch(decoded(root.system.lakehouse_def), signal));
  }

  async #rootOf(version, signal) {
    if (!Number.isSafeInteger(version) || version < 0) throw new Refused(404, "There is no such version.");
    return this.#node(pathOf(version), signal, `Version ${version} is not there, or has expired.`);
  }

  async #node(path, signal, absent) {
    const known = this.nodes.get(path);
    if (known) return known;
    const bytes = await this.#fetch(path, signal).catch((error) => {
      if (error.code === 404 && absent) throw new Refused(404, absent);
      throw error;
    });
    const node = { ...nodeOf(bytes, (system) => this.#order(system)), path };
    this.nodes.set(path, node);
    if (this.nodes.size > MAX_NODES) this.nodes.delete(this.nodes.keys().next().value);
    return node;
  }

  /** The order of the tree never changes; the first root that is read says it, if its definition is in it. */
  #order(system) {
    if (this.definition) return this.definition.order;
    const inline = system.lakehouse_def_inline;
    if (!inline) throw new Refused(501, "The definition of this lakehouse is too large for this page.");
    return lakehouseOf(Uint8Array.from(inline.match(/../g), (one) => Number.parseInt(one, 16))).order;
  }

  async #exists(version, signal) {
    const answer = await this.#ask(pathOf(version), { method: "HEAD", cache: "no-store", signal });
    return answer.ok;
  }

  async #fetch(path, signal, isFresh = false) {
    // Files never change, but for the hint: a browser may keep them.
    const answer = await this.#ask(path, { signal, cache: isFresh ? "no-store" : "default" });
    if (!answer.ok) throw new Refused(answer.status === 403 ? 404 : answer.status, `The file ${path} is not there.`);
    return new Uint8Array(await answer.arrayBuffer());
  }

  /** A range of a file; the whole file from a server that knows no ranges. */
  async #part(path, start, end, signal) {
    const answer = await this.#ask(path, { signal, headers: { Range: `bytes=${start}-${end - 1}` } });
    if (!answer.ok) throw new Refused(answer.status === 403 ? 404 : answer.status, `The file ${path} is not there.`);
    const isWhole = answer.status !== 206;
    if (isWhole && !(Number(answer.headers.get("Content-Length") ?? Infinity) <= MAX_WHOLE)) {
      throw new Refused(501, "The server of the files knows no ranges, and the file is too large to be read whole.");
    }
    const bytes = new Uint8Array(await answer.arrayBuffer());
    return isWhole ? bytes.subarray(start, end) : bytes;
  }

  async #ask(path, options) {
    if (path.startsWith("/") || path.split("/").some((part) => part === ".." || part === "." || part === "")) {
      throw new Damaged("the lakehouse names a file outside of it");
    }
    this.requests += 1;
    const url = new URL(path.split("/").map(encodeURIComponent).join("/"), this.root);
    try {
      return await fetch(url, { ...options, credentials: "omit", redirect: "error", referrerPolicy: "no-referrer" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(0, "The store of the lakehouse does not answer.");
    }
  }
}

/** The name of the root of a version (format §3). */
export function pathOf(version) {
  return `_${[...version.toString(2)].reverse().join("").padEnd(32, "0")}.arrow`;
}

export function versionOf(path) {
  const [, digits] = /^_([01]{32,63})\.(?:arrow|ipc)$/.exec(path) ?? [];
  return digits ? Number.parseInt([...digits].reverse().join(""), 2) : null;
}

function notFound(error) {
  if (error.code === 404) return null;
  throw error;
}

function range(first, last) {
  return Array.from({ length: Math.max(last - first + 1, 0) }, (_, at) => first + at);
}

async function unzipped(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
