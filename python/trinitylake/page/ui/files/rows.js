// The first rows of a table out of its files: Iceberg's manifests, and Parquet by hyparquet. Loaded when rows are asked for.

import { Refused } from "../server.js";
import { parquetMetadataAsync } from "../vendor/hyparquet/metadata.js";
import { parquetReadObjects } from "../vendor/hyparquet/read.js";
import { records } from "./avro.js";
import { Damaged, decompressor } from "./core.js";
import { textOf } from "./values.js";

const MAX_COLUMNS = 100, MAX_MANIFESTS = 40;
/** Of a file that may be read. */
const MAX_READ = 64 << 20;
const REMOVED = 2, DELETES = 1;

/**
 * The same answer as a server's. `metadata` is Iceberg's; `whole(location)` gives the bytes of a small file, and
 * `part(location, start, end)` those of a range.
 */
export async function firstRows({ metadata, limit, whole, part }) {
  const schema = metadata.schemas?.find((one) => one["schema-id"] === metadata["current-schema-id"]) ?? metadata.schema;
  const fields = schema.fields.slice(0, MAX_COLUMNS);
  const answer = {
    columns: fields.map((one) => ({ name: one.name, type: typeof one.type === "object" ? one.type.type : one.type })),
    rows: [], problem: "", "omitted-columns": schema.fields.slice(MAX_COLUMNS).map((one) => one.name),
  };
  const snapshot = metadata.snapshots?.find((one) => one["snapshot-id"] === metadata["current-snapshot-id"]);
  if (!snapshot) return answer;
  const lists = snapshot["manifest-list"] ? await records(await whole(snapshot["manifest-list"])) : snapshot.manifests.map((path) => ({ manifest_path: path }));
  if (lists.some((one) => one.content === DELETES && !(one.existing_files_count === 0 && one.added_files_count === 0))) {
    throw new Refused(501, "Rows of this table were deleted by files of their own (merge-on-read), which are not read without a server.");
  }
  let manifests = 0;
  for (const { manifest_path: path } of lists.filter((one) => (one.content ?? 0) !== DELETES)) {
    manifests += 1;
    if (manifests > MAX_MANIFESTS) return { ...answer, problem: `only ${MAX_MANIFESTS} manifests are read` };
    for (const { status, data_file: file } of await records(await whole(path))) {
      if (status === REMOVED || (file.content ?? 0) !== 0) continue;
      const rows = await rowsOfFile(file, fields, limit - answer.rows.length, part);
      for (const row of rows) answer.rows.push(row);
      if (answer.rows.length >= limit) return answer;
    }
  }
  return answer;
}

async function rowsOfFile(file, fields, limit, part) {
  if (String(file.file_format).toUpperCase() !== "PARQUET") throw new Refused(501, `Files of the format ${file.file_format} are not read without a server.`);
  const size = file.file_size_in_bytes;
  const buffer = { byteLength: size, slice: async (start, end = size) => exact(await part(file.file_path, start, end)) };
  try {
    const metadata = await parquetMetadataAsync(buffer);
    const names = namesIn(metadata, fields);
    const wanted = [...new Set(names.values())];
    if (!wanted.length) return Array.from({ length: Math.min(limit, Number(metadata.num_rows)) }, () => fields.map(defaultOf));
    checkSize(metadata, wanted);
    const decompress = await decompressor();
    const zstd = (bytes, size) => decompress(bytes, size);
    const found = await parquetReadObjects({ file: buffer, metadata, columns: wanted, rowStart: 0, rowEnd: limit, utf8: false, compressors: { ZSTD: zstd } });
    return found.map((row) => fields.map((one) => (names.has(one.id) ? textOf(row[names.get(one.id)], one.type) : defaultOf(one))));
  } catch (error) {
    if (error instanceof Refused || error instanceof Damaged || error.name === "AbortError") throw error;
    throw new Damaged(`a data file cannot be read here: ${error.message}`);
  }
}

/** The columns of a file by Iceberg's ids, with their names there. Values keep the form that they have in the file. */
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

/** What is read of a file are the columns of its first group of rows. */
function checkSize(metadata, names) {
  const columns = metadata.row_groups[0]?.columns ?? [];
  const size = columns.filter((one) => names.includes(one.meta_data.path_in_schema[0])).reduce((sum, one) => sum + Number(one.meta_data.total_compressed_size), 0);
  if (size > MAX_READ) throw new Refused(413, `The first rows of this table come with ${Math.round(size / 1e6)} MB of others, which is more than this page reads.`);
}

function exact(bytes) {
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
}
