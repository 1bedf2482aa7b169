// One query over tables and views of one version. DuckDB-Wasm would download its Parquet reader from another origin, so
// the page reads the columns that the query needs, and passes their rows to DuckDB.

import { Refused } from "../../server.js";
import { rowsOfTable } from "../rows.js";
import { columnsRead, working } from "./duckdb.js";
import { identifier, literal, namesIn, quoted, readings } from "./names.js";

const MAX_ROWS = 1000, MAX_NAMES = 200, MAX_VIEWS = 50;
/** Limit of the values that one query reads. */
const MAX_VALUES = 5_000_000;
const NONE = "\\N";
const READS = /^(?:\s|--[^\n]*\n|\/\*[^]*?\*\/|\()*(?:select|with|from|values|table|describe|summarize|pivot|unpivot)\b/i;

/**
 * The same answer as a server's. `locate(names)` returns "table", "view" or null for each name; `table(name)` returns
 * Iceberg's metadata, `view(name)` a view; `files` reads a `whole` file or a `part` of one.
 */
export async function run({ query, locate, table, view, files, signal }) {
  const text = query.trim().replace(/;\s*$/, "");
  if (!READS.test(text)) throw new Refused(400, "This page runs one statement that reads: SELECT, FROM, WITH, DESCRIBE, SUMMARIZE and the like.");
  const found = await resolved(text, { locate, table, view });
  return working(signal, async (opened) => {
    const plan = await opened();
    await define(plan, found);
    const read = await columnsRead(plan, found.text);
    const database = await opened();
    await define(database, found, (one) => fill(database, one, read, files));
    await database.close();
    const described = await database.texts(`SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM (${found.text}\n))`);
    const { rows } = await database.texts(`SELECT COLUMNS(*)::VARCHAR FROM (${found.text}\n) LIMIT ${MAX_ROWS + 1}`);
    return {
      columns: described.rows.map(([name, type]) => ({ name, type })), rows: rows.slice(0, MAX_ROWS), "omitted-columns": [],
      problem: rows.length > MAX_ROWS ? `only ${MAX_ROWS} are shown` : "",
    };
  });
}

/** The query with rewritten names of tables, and the tables and views that it reads. */
async function resolved(query, { locate, table, view }) {
  const tables = new Map(), views = new Map();
  const rewritten = async (text, namespace, above) => {
    const names = namesIn(text);
    if (names.length > 50 * MAX_NAMES) throw new Refused(413, "This query has too many names.");
    const asked = names.map((one) => [...readings(one), ...inNamespace(one, namespace)]);
    const distinct = new Map(asked.flat().map((one) => [JSON.stringify(one.name), one.name]));
    if (distinct.size > 5 * MAX_NAMES) throw new Refused(413, "This query has too many names.");
    const kinds = await locate([...distinct.values()]);
    const kindOf = new Map([...distinct.keys()].map((key, at) => [key, kinds[at]]));
    let written = "", done = 0;
    for (const [at, one] of names.entries()) {
      const meant = asked[at].find(({ name }) => kindOf.get(JSON.stringify(name)));
      if (!meant) continue;
      const key = JSON.stringify(meant.name);
      if (kindOf.get(key) === "table") tables.set(key, { name: meant.name, metadata: await table(meant.name) });
      else await viewed(key, meant.name, above);
      if (meant.isBare) continue;
      written += text.slice(done, one.start) + quoted(meant.name);
      done = meant.end;
    }
    return written + text.slice(done);
  };
  const viewed = async (key, name, above) => {
    if (above.includes(key)) throw new Refused(400, `The view ${name.join(".")} reads itself.`);
    if (views.has(key)) return;
    if (above.length >= MAX_VIEWS) throw new Refused(413, "These views are nested too deeply.");
    const found = await view(name);
    const [own] = [...found.queries.filter((one) => one.dialect.toLowerCase() === "duckdb"), ...found.queries];
    if (!own || !READS.test(own.sql)) throw new Refused(400, `The view ${name.join(".")} has no text that DuckDB could read.`);
    const namespace = found.namespace.length ? found.namespace : name.slice(0, -1);
    const text = await rewritten(own.sql.trim().replace(/;\s*$/, ""), namespace, [...above, key]);
    // After the views that it reads: the order of creation.
    views.set(key, { name, text, namespace });
  };
  return { text: await rewritten(query, null, []), tables: [...tables.values()], views: [...views.values()] };
}

/** A name without a namespace in a view is in the namespace of the view: DuckDB finds it by its search path. */
function inNamespace({ parts }, namespace) {
  return namespace && parts.length === 1 ? [{ name: [...namespace, parts[0].text], isBare: true }] : [];
}

async function define(database, { tables, views }, fillTable = async () => {}) {
  const all = [...tables.map((one) => one.name.slice(0, -1)), ...views.flatMap((one) => [one.name.slice(0, -1), one.namespace])];
  for (const schema of new Set(all.map((one) => one.join(".")))) await database.texts(`CREATE SCHEMA IF NOT EXISTS ${identifier(schema)}`);
  for (const one of tables) {
    const columns = fieldsOf(one.metadata).map((field) => `${identifier(field.name)} ${typeOf(field.type)}`);
    if (!columns.length) throw new Refused(400, `The table ${one.name.join(".")} has no columns.`);
    await database.texts(`CREATE TABLE ${quoted(one.name)} (${columns.join(", ")})`);
    await fillTable(one);
  }
  for (const one of views) {
    await database.texts(`SET schema = ${literal(identifier(one.namespace.join(".")))}`);
    await database.texts(`CREATE VIEW ${quoted(one.name)} AS ${one.text}\n`);
    await database.texts("SET schema = 'main'");
  }
}

async function fill(database, { name, metadata }, read, files) {
  const wanted = read.get(name.at(-1));
  if (wanted === undefined) return;
  const fields = fieldsOf(metadata);
  const known = new Set(fields.map((one) => one.name));
  const needed = wanted.every((one) => known.has(one)) ? fields.filter((one) => wanted.includes(one.name)) : fields;
  // Counting rows needs a column: a small one.
  const chosen = needed.length ? needed : [fields.find((one) => typeof one.type !== "object" && one.type !== "string") ?? fields[0]];
  const lines = [];
  let left = MAX_VALUES;
  for await (const row of rowsOfTable({ metadata, fields: chosen, ...files })) {
    left -= row.length;
    if (left < 0) throw new Refused(413, `The table ${name.join(".")} has more rows than this page reads: ${MAX_VALUES.toLocaleString("en")} values for a query.`);
    lines.push(row.map((one) => (one === null ? NONE : `"${one.replaceAll('"', '""')}"`)).join(","));
  }
  if (!lines.length) return;
  // The buffers of the reader are a multiple of it.
  const longest = lines.reduce((most, one) => Math.max(most, 4 * one.length), 1 << 20);
  await database.file("rows.csv", new TextEncoder().encode(`${lines.join("\n")}\n`));
  const columns = chosen.map((one, at) => `'c${at}': '${isBytes(one.type) ? "VARCHAR" : typeOf(one.type)}'`);
  const values = chosen.map((one, at) => (isBytes(one.type) ? `unhex(c${at})` : `c${at}`));
  await database.texts(`INSERT INTO ${quoted(name)} (${chosen.map((one) => identifier(one.name)).join(", ")}) SELECT ${values.join(", ")} FROM read_csv('rows.csv',
    auto_detect = false, header = false, delim = ',', quote = '"', escape = '"', nullstr = '\\N', allow_quoted_nulls = false, max_line_size = ${longest}, columns = {${columns.join(", ")}})`);
  await database.dropFile("rows.csv");
}

function fieldsOf(metadata) {
  const schema = metadata.schemas?.find((one) => one["schema-id"] === metadata["current-schema-id"]) ?? metadata.schema;
  return schema.fields;
}

const TYPES = new Map(Object.entries({
  boolean: "BOOLEAN", int: "INTEGER", long: "BIGINT", float: "FLOAT", double: "DOUBLE", date: "DATE", time: "TIME", uuid: "UUID",
  // In UTC: DuckDB would download its time zones from another origin.
  timestamp: "TIMESTAMP", timestamptz: "TIMESTAMP", timestamp_ns: "TIMESTAMP_NS", timestamptz_ns: "TIMESTAMP_NS", binary: "BLOB",
}));

/** Lists, structs and maps as JSON. */
function typeOf(type) {
  if (typeof type === "object") return "VARCHAR";
  if (isBytes(type)) return "BLOB";
  const [, digits, scale] = /^decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)$/.exec(type) ?? [];
  return digits === undefined ? TYPES.get(type) ?? "VARCHAR" : `DECIMAL(${digits},${scale})`;
}

function isBytes(type) {
  return type === "binary" || /^fixed\[/.test(type);
}
