// Names for the completion of queries: namespaces, tables, and columns of the tables that a query names.

import { identifier, namesIn, readings } from "../files/sql/names.js";

const MAX_TABLES = 8;
const SIMPLE = /^[a-z_][a-z0-9_]*$/;
const RESERVED = new Set(("all analyze and any array as asc between both case cast check collate column constraint create default desc describe distinct do else end "
  + "except false fetch for foreign from grant group having in initially intersect into lateral leading limit not null offset on only or order pivot placing primary "
  + "qualify references returning select show some summarize symmetric table then to trailing true union unique unpivot using variadic when where window with").split(" "));

/** A name in SQL, quoted if necessary. A namespace is one schema, even if it contains dots. */
export function readable(name) {
  const part = (text) => (SIMPLE.test(text) && !RESERVED.has(text) ? text : identifier(text));
  return [name.slice(0, -1).join("."), name.at(-1)].map(part).join(".");
}

export class Completion {
  constructor(source, names, at) {
    this.source = source;
    this.names = names;
    this.at = at;
    this.columns = new Map();
  }

  /** Names below a path in a query: `["shop"]` for what follows `shop.`. */
  async complete(path, query) {
    const [columns, objects] = await Promise.all([this.#columnsOf(path, query), this.#objectsIn(path)].map((one) => one.catch(() => [])));
    return [...columns, ...objects];
  }

  async #objectsIn(path) {
    const { names } = this;
    const [namespaces, tables, views] = await Promise.all([
      names.namespaces(path), path.length ? names.objects("table", path) : { items: [] }, path.length ? names.objects("view", path) : { items: [] },
    ]);
    const option = (kind) => (name) => ({ label: SIMPLE.test(name.at(-1)) ? name.at(-1) : identifier(name.at(-1)), detail: kind, type: kind });
    return [...namespaces.items.map(option("namespace")), ...tables.items.map(option("table")), ...views.items.map(option("view"))];
  }

  /** Columns of all tables of the query, or of the table with the name or alias at the end of the path. */
  async #columnsOf(path, query) {
    const named = namesIn(query), tables = [];
    for (const [place, one] of named.entries()) {
      const [reading] = readings(one);
      if (!reading) continue;
      const next = named[place + 1]?.parts;
      const isAlias = next?.length === 1 && /^\s+(?:as\s+)?$/i.test(query.slice(reading.end, named[place + 1].start)) && !RESERVED.has(next[0].text.toLowerCase());
      tables.push({ name: reading.name, names: [reading.name.at(-1), ...(isAlias ? [next[0].text] : [])] });
    }
    const wanted = tables.slice(0, MAX_TABLES).filter((one) => !path.length || one.names.includes(path.at(-1)));
    const found = await Promise.all(wanted.map((one) => this.#columns(one.name)));
    return found.flat().map((one) => ({ label: SIMPLE.test(one.name) && !RESERVED.has(one.name) ? one.name : identifier(one.name), detail: one.type, type: "property", boost: 1 }));
  }

  /** The columns of a table, read once; empty for a name that is not a table. */
  #columns(name) {
    const key = JSON.stringify(name);
    if (!this.columns.has(key)) this.columns.set(key, this.source.table(this.at, name).then((found) => found.columns, () => []));
    return this.columns.get(key);
  }
}
