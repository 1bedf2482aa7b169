// Data of a lakehouse from the server of this page. A token is stored for this tab only.

import { sqlType } from "./types.js";

const KEY = "trinitylake.token";
const PAGE = "trinitylake/v1/page";
const MAX_RETRIES = 4, RETRY_MILLIS = 250;
const SEPARATOR = "\u001f";

/** An error response; `code` 0 without a response. */
export class Refused extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

export class ServerSource {
  constructor() {
    this.token = stored();
  }

  use(token) {
    this.token = token;
    try {
      if (token) sessionStorage.setItem(KEY, token);
      else sessionStorage.removeItem(KEY);
    } catch {
      // Then it is in memory only.
    }
  }

  lakehouse(signal) {
    return this.#ask(`${PAGE}/lakehouse`, {}, signal);
  }

  address(address, signal) {
    return this.#ask(`${PAGE}/address`, { address }, signal);
  }

  counts(at, signal) {
    return this.#ask(`${PAGE}/${escaped(at)}/counts`, {}, signal);
  }

  async namespaces(at, parent, next, signal) {
    const options = { pageSize: 500, pageToken: next, parent: parent.length ? parent.join(SEPARATOR) : undefined };
    const found = await this.#ask(`v1/${escaped(at)}/namespaces`, options, signal);
    return { items: found.namespaces, next: found["next-page-token"] };
  }

  async objects(at, kind, namespace, next, signal) {
    const path = `v1/${escaped(at)}/namespaces/${escaped(namespace.join(SEPARATOR))}/${kind}s`;
    const found = await this.#ask(path, { pageSize: 1000, pageToken: next }, signal);
    return { items: found.identifiers.map((one) => [...one.namespace, one.name]), next: found["next-page-token"] };
  }

  async namespace(at, name, signal) {
    const found = await this.#ask(`v1/${escaped(at)}/namespaces/${escaped(name.join(SEPARATOR))}`, {}, signal);
    return { properties: found.properties };
  }

  table(at, name, signal) {
    return this.#ask(`${PAGE}/${tablePath(at, name)}`, {}, signal);
  }

  rows(at, name, limit, signal) {
    return this.#ask(`${PAGE}/${tablePath(at, name)}/rows`, { limit }, signal);
  }

  /** Rows that changed after version `since`. */
  rowChanges(at, name, since, limit, signal) {
    return this.#ask(`${PAGE}/${tablePath(at, name)}/rows`, { limit, since }, signal);
  }

  history(at, name, signal) {
    return this.#ask(`${PAGE}/${tablePath(at, name)}/history`, {}, signal);
  }

  async view(at, name, signal) {
    const namespace = escaped(name.slice(0, -1).join(SEPARATOR));
    const found = await this.#ask(`v1/${escaped(at)}/namespaces/${namespace}/views/${escaped(name.at(-1))}`, {}, signal);
    const metadata = found.metadata;
    const version = metadata.versions.find((one) => one["version-id"] === metadata["current-version-id"]) ?? {};
    const schema = metadata.schemas.find((one) => one["schema-id"] === version["schema-id"]) ?? { fields: [] };
    return {
      id: metadata["view-uuid"],
      queries: (version.representations ?? []).map((one) => ({ dialect: one.dialect, sql: one.sql })),
      namespace: version["default-namespace"] ?? [],
      columns: schema.fields.map((one) => ({
        name: one.name, type: sqlType(one.type), required: one.required, comment: one.doc ?? "", "is-key": false,
      })),
      properties: metadata.properties ?? {},
    };
  }

  search(at, text, namespace, next, signal, size = 50) {
    return this.#ask(`${PAGE}/${escaped(at)}/search`, { text, namespace: namespace?.join("."), next, size }, signal);
  }

  /** Rows, sizes and last changes of tables, null where unknown. */
  totals(at, tables, signal) {
    return this.#ask(`${PAGE}/${escaped(at)}/totals`, {}, signal, "POST", { tables });
  }

  /** `filters` are `text`, `author`, `object` and `size`. */
  log(before, { text, author, object, size = 50 }, signal) {
    return this.#ask(`${PAGE}/log`, { before, search: text, author, object, size }, signal);
  }

  diff(from, to, start, signal) {
    return this.#ask(`${PAGE}/diff`, { from, to, start }, signal);
  }

  transactions(signal) {
    return this.#ask(`${PAGE}/transactions`, {}, signal);
  }

  tree(at, way, signal) {
    return this.#ask(`${PAGE}/${escaped(at)}/tree`, { at: way }, signal);
  }

  sql(at, query, signal) {
    return this.#ask(`${PAGE}/${escaped(at)}/sql`, {}, signal, "POST", { query });
  }

  maintenance(signal) {
    return this.#ask(`${PAGE}/maintenance`, {}, signal);
  }

  beginMaintenance(signal) {
    return this.#ask(`${PAGE}/maintenance`, {}, signal, "POST");
  }

  async #ask(path, options, signal, method = "GET", body = undefined) {
    const given = Object.entries(options).filter(([, value]) => value !== undefined && value !== null && value !== "");
    const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
    const headers = { Accept: "application/json" };
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const url = new URL(path + (query ? `?${query}` : ""), new URL(".", document.baseURI));
    let answer;
    for (let retries = 0; ; retries += 1) {
      try {
        answer = await fetch(url, {
          method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body),
          credentials: "omit", cache: "no-store", redirect: "error", referrerPolicy: "no-referrer",
        });
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new Refused(0, "The server does not answer.");
      }
      // The server limits the concurrent requests of a principal. Without tokens all readers are the same principal.
      if (answer.status !== 429 || retries === MAX_RETRIES) break;
      await new Promise((done) => setTimeout(done, RETRY_MILLIS * 2 ** retries));
      signal?.throwIfAborted();
    }
    let found = null;
    try {
      found = await answer.json();
    } catch (error) {
      if (error.name === "AbortError") throw error;
    }
    if (answer.ok && found !== null) return found;
    throw new Refused(answer.status, found?.error?.message ?? `The server answered with ${answer.status}.`);
  }
}

function stored() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

/** A name in a path. The server reads a plus as a space. */
function escaped(text) {
  return encodeURIComponent(text).replace(/[!'()*]/g, (one) => `%${one.charCodeAt(0).toString(16).toUpperCase()}`);
}

function tablePath(at, name) {
  return `${escaped(at)}/namespaces/${escaped(name.slice(0, -1).join(SEPARATOR))}/tables/${escaped(name.at(-1))}`;
}
