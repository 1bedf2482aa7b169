// Data of a lakehouse from its files over HTTP, with the same interface as `server.js`.

import { Refused } from "../server.js";
import { ask, Damaged, load, unzipped } from "./core.js";
import { describe, parsed } from "./metadata.js";

/** Requests after which a search asks whether to continue. */
const MAX_SEARCHED = 40;
const PAGE = 500, LOG = 25, MAX_FOUND = 50;
/** Tables whose rows and sizes are read for a list. */
const MAX_TOTALED = 20;
/** Changes of a transaction in the log. */
const MAX_NAMED = 20;
/** Limits of a comparison: versions in between, and concurrent lookups. */
const MAX_VERSIONS = 50, MAX_LOCATED = 100;
/** Rounds of node reads for one answer: more than any tree or list needs. */
const MAX_ROUNDS = 1000;
/** Size of a data file on a server without range requests. */
const MAX_WHOLE = 16 << 20;

export class FilesSource {
  /** `root` is the address of the root, ending in a slash; `hasSql` is whether the page contains DuckDB. */
  constructor(root, hasSql = false) {
    this.root = root;
    this.hasSql = hasSql;
    this.token = "";
    this.newest = null;
    this.requests = 0;
    // In parallel with the hint.
    load().catch(() => {});
  }

  async lakehouse(signal) {
    const version = await this.#latest(signal);
    const root = await this.#rootOf(version, signal);
    const found = this.definition;
    return {
      name: found.name, principal: "", version, "created-at-millis": root["created-at-millis"], "oldest-version": 0,
      "reads-everything": true, uri: this.root.href, properties: found.properties, tags: found.snapshots,
      may: { rows: true, sql: this.hasSql, tree: true, maintenance: false, transactions: false, counts: false, history: false },
      "sql-note": "The first query loads DuckDB (8 MB). Times with a zone are in UTC; lists, structs and maps are JSON.",
    };
  }

  async address(address, signal) {
    const [, kind, value] = /^@(version|tag|timestamp)\/(.+)$/.exec(address) ?? [];
    if (!kind) throw new Refused(404, "There is no such address.");
    const at = kind === "timestamp" ? `version~${await this.#versionAt(Date.parse(value), signal)}` : `${kind}~${value}`;
    const version = await this.#versionOfState(at, signal);
    const root = await this.#rootOf(version, signal);
    return { prefix: at, version, "created-at-millis": root["created-at-millis"] };
  }

  async namespaces(at, parent, next, signal) {
    const root = await this.#rootPath(at, signal);
    const found = await this.#answer({ namespaces: { root, parent, start: next ?? null, limit: PAGE } }, signal);
    if (parent.length && !found.items.length && next === undefined) await this.#location(root, "namespace", parent, signal);
    return { items: found.items, next: found.next ?? undefined };
  }

  async objects(at, kind, namespace, next, signal) {
    const root = await this.#rootPath(at, signal);
    const found = await this.#answer({ objects: { root, kind, namespace, start: next ?? null, limit: PAGE } }, signal);
    return { items: found.items, next: found.next ?? undefined };
  }

  async namespace(at, name, signal) {
    return this.#definition(at, "namespace", name, signal);
  }

  async table(at, name, signal) {
    const [table, metadata] = await this.#tableOf(at, name, signal);
    try {
      return describe(name, table, metadata);
    } catch (error) {
      throw new Damaged(`the metadata of the table is damaged: ${error.message}`);
    }
  }

  /** The reader of rows is loaded on demand. */
  async rows(at, name, limit, signal) {
    const { firstRows } = await import("./rows.js");
    const [, metadata] = await this.#tableOf(at, name, signal);
    if (metadata === null) throw new Refused(501, "Rows of a table in another catalog are shown by a server only.");
    return firstRows({
      metadata, limit,
      ...this.#files(signal),
    });
  }

  /** Rows that differ from those of version `since`. */
  async rowChanges(at, name, since, limit, signal) {
    const { changedRows } = await import("./rows.js");
    const [table, after] = await this.#tableOf(at, name, signal);
    if (after === null) throw new Refused(501, "Rows of a table in another catalog are shown by a server only.");
    const [earlier, before] = await this.#tableOf(`version~${since}`, name, signal).catch((error) => {
      if (error.code !== 404) throw error;
      return [null, null];
    });
    return changedRows({ before: earlier?.id === table.id ? before : null, after, limit, ...this.#files(signal) });
  }

  /** Rows, size and last change of the first tables; null for the others, because each needs two requests. */
  async totals(at, names, signal) {
    const found = await Promise.all(names.map(async (name, place) => {
      if (place >= MAX_TOTALED) return null;
      const { type, totals, ...rest } = await this.table(at, name, signal).catch((error) => {
        if (error.name === "AbortError") throw error;
        return {};
      });
      return type === "managed" ? { ...totals, "last-updated-millis": rest["last-updated-millis"] } : null;
    }));
    return { tables: found };
  }

  /** DuckDB is loaded on demand. */
  async sql(at, query, signal) {
    const { run } = await import("./sql/query.js");
    const root = await this.#rootPath(at, signal);
    return run({
      query, signal, files: this.#files(signal),
      locate: async (names) => {
        const found = await this.#locations(root, names.flatMap((name) => ["table", "view"].map((kind) => ({ kind, name }))), signal);
        return names.map((_, at) => (found[2 * at] !== null ? "table" : found[2 * at + 1] !== null ? "view" : null));
      },
      table: async (name) => {
        const [, metadata] = await this.#tableOf(at, name, signal);
        if (metadata === null) throw new Refused(501, `The table ${name.join(".")} is in another catalog, which this page does not read.`);
        return metadata;
      },
      view: (name) => this.view(at, name, signal),
    });
  }

  #files(signal) {
    return {
      whole: (location) => this.#fetch(this.#pathIn(location), signal),
      part: (location, start, end) => this.#part(this.#pathIn(location), start, end, signal),
    };
  }

  /** Definition and Iceberg metadata of a table; null metadata for an external table. */
  async #tableOf(at, name, signal) {
    const table = await this.#definition(at, "table", name, signal);
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

  /** Path below the root of a location in Iceberg's metadata. The definition has all names of the root. */
  #pathIn(location) {
    const plain = String(location).replace(/^s3a:/, "s3:").replace(/^file:(\/\/localhost)?\/(?!\/)/, "file:///");
    const root = this.definition.roots.find((one) => plain.startsWith(one));
    if (!root) throw new Refused(501, "A file of this table is outside of the lakehouse, so this page does not read it.");
    return plain.slice(root.length);
  }

  async view(at, name, signal) {
    return this.#definition(at, "view", name, signal);
  }

  async search(at, text, namespace, next, signal, size = PAGE) {
    const root = await this.#rootPath(at, signal);
    const wanted = text.toLowerCase(), within = namespace?.join(".");
    const found = [];
    const before = this.requests;
    for (let start = next ?? null; ;) {
      const page = await this.#answer({ all: { root, start, limit: size } }, signal);
      for (const one of page.items) {
        const own = within === undefined ? one.name.join(".") : one.name.at(-1);
        const isInside = within === undefined || (one.kind !== "namespace" && one.name.slice(0, -1).join(".") === within);
        if (isInside && own.toLowerCase().includes(wanted)) found.push(one);
      }
      start = page.next;
      if (start === null || found.length >= MAX_FOUND || this.requests - before > MAX_SEARCHED) return { found, next: start };
    }
  }

  async log(before, { text = "", author, object }, signal) {
    const newest = await this.#latest(signal);
    const entries = [];
    const wanted = text.toLowerCase();
    let version = Math.min(before ?? Infinity, newest + 1) - 1;
    const names = await this.#tags(signal);
    const last = Math.max(version - LOG + 1, 0);
    const roots = await Promise.all(range(last, version).map((one) => this.#rootOf(one, signal).catch((error) => {
      if (error.name === "AbortError") throw error;
      return error;
    })));
    for (; version >= last; version -= 1) {
      const root = roots[version - last];
      // A missing version has expired, with all before it; if an earlier version exists, it is lost.
      if (root.code === 404 && roots.slice(0, version - last).every((one) => one.code === 404)) {
        return { entries, next: null, "oldest-version": version + 1 };
      }
      if (root instanceof Error) {
        entries.push({
          version, "created-at-millis": null, problem: root.message, "rollback-from": null, "rollback-to": null,
          transactions: [], tags: names.get(version) ?? [],
        });
        continue;
      }
      const entry = {
        version, "created-at-millis": root["created-at-millis"], problem: "", "rollback-from": root["rollback-from"],
        "rollback-to": root["rollback-to"], transactions: root.transactions.map(shownInLog), tags: names.get(version) ?? [],
      };
      const isMeant = (one) => (!author || one.author === author) && (!object || one.changes?.some((each) => `${each.name.join(".")}.`.startsWith(`${object}.`)));
      if ((!wanted || JSON.stringify(entry).toLowerCase().includes(wanted)) && ((!author && !object) || entry.transactions.some(isMeant))) entries.push(entry);
    }
    return { entries, next: last > 0 ? last : null, "oldest-version": 0 };
  }

  /** Objects that differ between two close versions, without rollbacks and registrations in between. */
  async diff(from, to, start, signal) {
    const [low, high] = [Math.min(from, to), Math.max(from, to)];
    if (high - low > MAX_VERSIONS) throw new Refused(413, `Without a server, versions are compared that are at most ${MAX_VERSIONS} apart.`);
    const changed = new Map();
    for (let version = low + 1; version <= high; version += 1) {
      const objects = await this.#answer({ changes: { root: await pathOf(version) } }, signal);
      if (objects === null) throw new Refused(413, `Version ${version} was made by a rollback or a registration, which only a server compares.`);
      for (const one of objects) changed.set(JSON.stringify(one), one);
    }
    const objects = [...changed.keys()].sort().map((key) => changed.get(key));
    const [before, after] = [await this.#locations(await pathOf(from), objects, signal), await this.#locations(await pathOf(to), objects, signal)];
    const changes = objects.map((one, at) => ({ sign: signOf(before[at], after[at]), ...one })).filter((one) => one.sign !== "");
    return { from, to, changes, next: null };
  }

  async tree(at, way, signal) {
    const shownOf = (path) => this.#answer({ node: { path, children: 512, keys: 512, messages: 200 } }, signal);
    let path = await this.#rootPath(at, signal);
    let node = await shownOf(path);
    for (const step of way ? way.split(".").map(Number) : []) {
      path = node.children[step];
      if (!path) throw new Refused(404, "The tree of this version has no such node.");
      node = await shownOf(path);
    }
    return { ...node, at: way, path, keys: node.keys.slice(0, 200), separators: node.children.length ? node.keys : [] };
  }

  /** Path of the definition of an object. */
  async #location(root, kind, name, signal) {
    const [found] = await this.#locations(root, [{ kind, name }], signal);
    if (found === null) throw new Refused(404, `There is no ${kind} ${name.join(".")} in this version.`);
    return found;
  }

  async #locations(root, objects, signal) {
    const found = [];
    for (let at = 0; at < objects.length; at += MAX_LOCATED) {
      const some = objects.slice(at, at + MAX_LOCATED).map(({ kind, name }) => ({ kind, name }));
      found.push(...await this.#answer({ locate: { root, objects: some } }, signal));
    }
    return found;
  }

  async #definition(at, kind, name, signal) {
    const root = await this.#rootPath(at, signal);
    const path = await this.#location(root, kind, name, signal);
    // A definition in the root may have no file yet: its writer is about to write it, or has died.
    const held = await this.#answer({ held: { root, kind, path } }, signal);
    return held ?? this.#answer({ definition: { kind, path } }, signal, await this.#fetch(path, signal));
  }

  /** The answer of the core to a question, with all nodes that it needs. */
  async #answer(question, signal, file) {
    for (let round = 0; round < MAX_ROUNDS; round += 1) {
      const reply = await ask(question, file);
      if (!reply.wanted) return reply.answer;
      await Promise.all([...new Set(reply.wanted)].map((path) => this.#keep(path, signal)));
    }
    throw new Damaged("the tree has too many nodes on one path");
  }

  async #keep(path, signal) {
    const bytes = await this.#fetch(path, signal).catch((error) => {
      if (error.code === 404 && path.startsWith("_")) throw new Refused(404, "This version does not exist, or has expired.");
      throw error;
    });
    await ask({ keep: { path } }, bytes);
  }

  async #rootPath(at, signal) {
    return pathOf(await this.#versionOfState(at, signal));
  }

  async #versionOfState(at, signal) {
    if (at === "latest") return this.newest ?? this.#latest(signal);
    const [kind, value] = [at.slice(0, at.indexOf("~")), at.slice(at.indexOf("~") + 1)];
    if (kind === "version") return Number(value);
    if (!this.definition) await this.lakehouse(signal);
    const version = this.definition.snapshots[value];
    if (version === undefined) throw new Refused(404, `There is no tag ${value}.`);
    return version;
  }

  async #tags(signal) {
    if (!this.definition) await this.lakehouse(signal);
    const names = new Map();
    for (const [name, version] of Object.entries(this.definition.snapshots)) names.set(version, [...(names.get(version) ?? []), name]);
    return names;
  }

  /** The latest version: the core names the files to check until it is known. */
  async #latest(signal) {
    const known = this.newest, heard = [];
    let step = {};
    while (step.newest === undefined) {
      if (step.hint) heard.push({ hint: await this.#hint(step.hint, signal) });
      if (step.exist) heard.push({ exist: await Promise.all(step.exist.map((path) => this.#exists(path, signal))) });
      step = await this.#answer({ newest: { known, heard } }, signal);
    }
    const version = step.newest;
    if (version !== this.newest) {
      const root = await this.#rootOf(version, signal);
      const path = root["definition-path"];
      this.definition = root.definition ?? await this.#answer({ lakehouse: { path } }, signal, await this.#fetch(path, signal));
      this.newest = version;
    }
    return version;
  }

  /** The hint, parsed by the core. */
  async #hint(path, signal) {
    const content = await this.#fetch(path, signal, true).catch(notFound);
    return content === null ? null : new TextDecoder().decode(content.subarray(0, 100));
  }

  /** The latest version at a time: the core names the versions to read until it is known. */
  async #versionAt(millis, signal) {
    if (Number.isNaN(millis)) throw new Refused(400, "That is not a time.");
    const newest = await this.#latest(signal), heard = [];
    for (;;) {
      const step = await this.#answer({ "version-at": { moment: millis, newest, heard } }, signal);
      if (step.version !== undefined) return step.version;
      const root = await this.#rootOf(step.created, signal).catch(notFound);
      heard.push(root?.["created-at-millis"] ?? null);
    }
  }

  async #rootOf(version, signal) {
    return this.#answer({ root: { root: await pathOf(version), named: MAX_NAMED } }, signal);
  }

  /** Stores without permission to list answer 403 for a missing file. */
  async #exists(path, signal) {
    const answer = await this.#request(path, { method: "HEAD", cache: "no-store", signal });
    if (!answer.ok && ![403, 404, 410].includes(answer.status)) throw new Refused(answer.status, "The store of the lakehouse gave an unexpected answer.");
    return answer.ok;
  }

  async #fetch(path, signal, isFresh = false) {
    // Files other than the hint never change: a browser may cache them.
    const answer = await this.#request(path, { signal, cache: isFresh ? "no-store" : "default" });
    if (!answer.ok) throw new Refused(answer.status === 403 ? 404 : answer.status, `The file ${path} does not exist.`);
    return new Uint8Array(await answer.arrayBuffer());
  }

  /** A range of a file; the whole file from a server without range requests. */
  async #part(path, start, end, signal) {
    const answer = await this.#request(path, { signal, headers: { Range: `bytes=${start}-${end - 1}` } });
    if (!answer.ok) throw new Refused(answer.status === 403 ? 404 : answer.status, `The file ${path} does not exist.`);
    const isWhole = answer.status !== 206;
    if (isWhole && !(Number(answer.headers.get("Content-Length") ?? Infinity) <= MAX_WHOLE)) {
      throw new Refused(501, "The server of the files knows no ranges, and the file is too large to be read whole.");
    }
    const bytes = new Uint8Array(await answer.arrayBuffer());
    return isWhole ? bytes.subarray(start, end) : bytes;
  }

  async #request(path, options) {
    if (path.startsWith("/") || path.split("/").some((part) => part === ".." || part === "." || part === "")) {
      throw new Damaged("the lakehouse references a file outside of its root");
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

/** Path of the root of a version. */
async function pathOf(version) {
  if (!Number.isSafeInteger(version) || version < 0) throw new Refused(404, "There is no such version.");
  return (await ask({ "root-path": { version } })).answer;
}

/** A message that sets a name does not say whether the name is new. */
function shownInLog(transaction) {
  const changes = transaction.changes?.map(({ removes, ...object }) => ({ sign: removes ? "-" : "=", ...object })) ?? null;
  return { ...transaction, changes, "is-whole": true, principal: "" };
}

function signOf(before, after) {
  if (before === after) return "";
  return before === null ? "+" : after === null ? "-" : "~";
}

function notFound(error) {
  if (error.code === 404) return null;
  throw error;
}

function range(first, last) {
  return Array.from({ length: Math.max(last - first + 1, 0) }, (_, at) => first + at);
}
