// Rows of a table from Iceberg's manifests and Parquet files (hyparquet). Loaded on demand.

import { Refused } from "../server.js";
import { parquetMetadataAsync, parquetReadObjects } from "hyparquet";
import { sqlType } from "../types.js";
import { records } from "./avro.js";
import { Damaged, decompressor } from "./core.js";
import { profilesOf } from "./profiles.js";
import { textOf } from "./values.js";

const MAX_COLUMNS = 100, MAX_MANIFESTS = 40;
/** Characters of a shown value. */
const MAX_SHOWN = 1000;
/** Limits of bytes: of one file for first rows, and of all files of a table for all rows. */
const MAX_READ = 64 << 20;
const REMOVED = 2, DELETES = 1;

/**
 * The same answer as a server's. `metadata` is Iceberg's; `whole(location)` returns the bytes of a small file,
 * `part(location, start, end)` those of a range.
 */
export async function firstRows({ metadata, limit, whole, part }) {
  const { fields, answer } = answerOf(metadata);
  const files = [];
  try {
    for await (const file of dataFiles(metadata, whole)) files.push(file);
    profilesOf(files, fields).forEach((one, at) => Object.assign(answer.columns[at], one));
  } catch (error) {
    if (!(error instanceof TooMany)) throw error;
    answer.problem = `only ${MAX_MANIFESTS} manifests are read`;
  }
  for (const file of files) {
    const rows = await rowsOfFile(file, { fields, limit: limit - answer.rows.length, part, budget: { left: MAX_READ } });
    for (const row of rows) answer.rows.push(row);
    if (answer.rows.length >= limit) return { ...answer, problem: "" };
  }
  return answer;
}

/** All rows of some fields, as complete texts. */
export async function* rowsOfTable({ metadata, fields, whole, part }) {
  const budget = { left: MAX_READ };
  for (const file of await allFiles(metadata, whole)) yield* await rowsOfFile(file, { fields, limit: Infinity, part, budget, longest: Infinity });
}

/**
 * The rows that differ between two states of a table, from the files that only one of them has. The same answer as a
 * server's, but updated rows are recognised by the primary key alone. `before` is null if the table did not exist.
 */
export async function changedRows({ before, after, limit, whole, part }) {
  const { schema, fields, answer } = answerOf(after);
  const [old, now] = [before ? await allFiles(before, whole) : [], await allFiles(after, whole)];
  const budget = { left: MAX_READ };
  const read = async (files, others) => {
    const known = new Set(others.map((one) => one.file_path)), rows = [];
    for (const file of files) if (!known.has(file.file_path)) for (const row of await rowsOfFile(file, { fields, limit: Infinity, part, budget, longest: Infinity })) rows.push(row);
    return rows;
  };
  const removed = new Map();
  for (const row of await read(old, now)) {
    const text = JSON.stringify(row);
    removed.set(text, [...(removed.get(text) ?? []), row]);
  }
  const added = (await read(now, old)).filter((row) => !removed.get(JSON.stringify(row))?.pop()); // others are only in another file
  const keys = (schema["identifier-field-ids"] ?? []).map((id) => fields.findIndex((one) => one.id === id));
  const keyOf = (row) => JSON.stringify(keys.map((at) => row[at]));
  const byKey = new Map(keys.length && !keys.includes(-1) ? [...removed.values()].flat().map((row) => [keyOf(row), row]) : []);
  const lines = { "~": [], "-": [], "+": [] };
  for (const row of added) {
    const was = byKey.get(keyOf(row));
    if (was) byKey.delete(keyOf(row)), removed.get(JSON.stringify(was)).pop();
    lines[was ? "~" : "+"].push([row, was ?? null]);
  }
  lines["-"] = [...removed.values()].flat().map((row) => [row, null]);
  const shown = Object.entries(lines).flatMap(([sign, rows]) => rows.map(([row, was]) => [sign, row, was])).slice(0, limit);
  const short = (row) => row && row.map((one) => (one !== null && one.length > MAX_SHOWN ? `${one.slice(0, MAX_SHOWN)}…` : one));
  return {
    ...answer, rows: shown.map(([, row]) => short(row)), signs: shown.map(([sign]) => sign), before: shown.map(([, , was]) => short(was)),
    counts: Object.fromEntries(Object.entries(lines).map(([sign, rows]) => [sign, rows.length])), "is-counted": true,
  };
}

/** The current schema of a table, the fields that are read, and an answer without rows. */
function answerOf(metadata) {
  const schema = metadata.schemas?.find((one) => one["schema-id"] === metadata["current-schema-id"]) ?? metadata.schema;
  const fields = schema.fields.slice(0, MAX_COLUMNS);
  return {
    schema, fields,
    answer: {
      columns: fields.map((one) => ({ name: one.name, type: sqlType(one.type) })),
      rows: [], problem: "", "omitted-columns": schema.fields.slice(MAX_COLUMNS).map((one) => one.name),
    },
  };
}

async function allFiles(metadata, whole) {
  const files = [];
  try {
    for await (const file of dataFiles(metadata, whole)) files.push(file);
  } catch (error) {
    if (!(error instanceof TooMany)) throw error;
    throw new Refused(413, `A table has more than ${MAX_MANIFESTS} manifests, which is more than this page reads.`);
  }
  return files;
}

class TooMany extends Error {}

/** The data files of the current snapshot, from its manifests. */
async function* dataFiles(metadata, whole) {
  const snapshot = metadata.snapshots?.find((one) => one["snapshot-id"] === metadata["current-snapshot-id"]);
  if (!snapshot) return;
  const lists = snapshot["manifest-list"] ? await records(await whole(snapshot["manifest-list"])) : snapshot.manifests.map((path) => ({ manifest_path: path }));
  if (lists.some((one) => one.content === DELETES && !(one.existing_files_count === 0 && one.added_files_count === 0))) {
    throw new Refused(501, "This table has delete files (merge-on-read), so its rows are shown by a server only.");
  }
  const manifests = lists.filter((one) => (one.content ?? 0) !== DELETES);
  const read = manifests.slice(0, MAX_MANIFESTS).map(async ({ manifest_path: path }) => records(await whole(path)));
  for (const entries of await Promise.all(read)) {
    for (const { status, data_file: file } of entries) if (status !== REMOVED && (file.content ?? 0) === 0) yield file;
  }
  if (manifests.length > MAX_MANIFESTS) throw new TooMany();
}

async function rowsOfFile(file, { fields, limit, part, budget, longest }) {
  if (String(file.file_format).toUpperCase() !== "PARQUET") throw new Refused(501, `Files of the format ${file.file_format} are shown by a server only.`);
  const size = file.file_size_in_bytes;
  const buffer = { byteLength: size, slice: async (start, end = size) => exact(await part(file.file_path, start, end)) };
  try {
    const metadata = await parquetMetadataAsync(buffer);
    const names = namesIn(metadata, fields);
    const wanted = [...new Set(names.values())];
    if (!wanted.length) return Array.from({ length: Math.min(limit, Number(metadata.num_rows)) }, () => fields.map(defaultOf));
    spend(budget, metadata, wanted, limit);
    const decompress = await decompressor();
    const zstd = (bytes, size) => decompress(bytes, size);
    const found = await parquetReadObjects({ file: buffer, metadata, columns: wanted, rowStart: 0, rowEnd: Math.min(limit, Number(metadata.num_rows)), utf8: false, compressors: { ZSTD: zstd } });
    return found.map((row) => fields.map((one) => (names.has(one.id) ? textOf(row[names.get(one.id)], one.type, longest) : defaultOf(one))));
  } catch (error) {
    if (error instanceof Refused || error instanceof Damaged || error.name === "AbortError") throw error;
    throw new Damaged(`a data file cannot be read here: ${error.message}`);
  }
}

/** Columns of a file by Iceberg's field ids, with their names in the file. Values are not converted. */
function namesIn(metadata, fields) {
  for (const one of metadata.schema) {
    const isText = one.converted_type === "UTF8" || one.logical_type?.type === "STRING";
    if (one.type && !isText) delete one.converted_type, delete one.logical_type;
  }
  const columns = topLevel(metadata.schema);
  const hasIds = columns.some((one) => one.field_id !== undefined);
  const found = fields.map((field) => [field.id, columns.find((one) => (hasIds ? one.field_id === field.id : one.name === field.name))?.name]);
  return new Map(found.filter(([, name]) => name !== undefined));
}

function topLevel(schema) {
  const found = [];
  for (let at = 1; at < schema.length; at = behind(schema, at)) found.push(schema[at]);
  return found;
}

function behind(schema, at) {
  let next = at + 1;
  for (let child = 0; child < (schema[at].num_children ?? 0); child += 1) next = behind(schema, next);
  return next;
}

function defaultOf(field) {
  const given = field["initial-default"];
  return given === undefined || given === null ? null : typeof given === "object" ? JSON.stringify(given) : String(given);
}

/** The parts of a file to read: columns of the first row groups with enough rows. */
function spend(budget, metadata, names, limit) {
  let size = 0, rows = 0;
  for (const group of metadata.row_groups) {
    if (rows >= limit) break;
    rows += Number(group.num_rows);
    for (const one of group.columns) if (names.includes(one.meta_data.path_in_schema[0])) size += Number(one.meta_data.total_compressed_size);
  }
  budget.left -= size;
  if (budget.left >= 0) return;
  const others = limit === Infinity ? "take" : "come with others that take";
  throw new Refused(413, `The rows of this table ${others} ${Math.round((MAX_READ - budget.left) / 1e6)} MB, which is more than this page reads.`);
}

function exact(bytes) {
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
}
