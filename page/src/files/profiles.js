// Share of NULL and bounds of columns, from the metrics of data files in manifests. No data file is read.

import { textOf, whole } from "./values.js";

/** The profile of each field: the same answer as a server's. Unknown figures are null. */
export function profilesOf(files, fields) {
  const rows = files.reduce((sum, file) => sum + file.record_count, 0);
  return fields.map((field) => (rows && typeof field.type === "string" ? profile(files, field, rows) : { nulls: null, min: null, max: null }));
}

function profile(files, { id, type }, rows) {
  const counts = files.map((file) => metric(file.null_value_counts, id));
  const nulls = counts.includes(undefined) ? null : counts.reduce((sum, one) => sum + one, 0) / rows;
  const filled = files.filter((file, at) => counts[at] !== file.record_count);
  const [lower, upper] = ["lower_bounds", "upper_bounds"].map((name) => filled.map((file) => valueOf(metric(file[name], id), type)));
  if (!filled.length || lower.includes(null) || upper.includes(null)) return { nulls, min: null, max: null };
  const text = (value) => textOf(type === "string" ? new TextDecoder().decode(value) : value, type);
  return {
    nulls,
    min: text(lower.reduce((one, other) => (isLess(other, one) ? other : one))),
    max: text(upper.reduce((one, other) => (isLess(one, other) ? other : one))),
  };
}

/** The value under a field id in a map, which Avro has as a list of entries. */
function metric(entries, id) {
  return entries?.find((one) => one.key === id)?.value;
}

/** A bound as a value that can be compared: a text as its bytes, whose order is that of its characters. */
function valueOf(bytes, type) {
  if (!bytes) return null;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const isLong = bytes.length === 8;
  switch (type.replace(/\(.*/, "")) {
    case "boolean": return bytes[0] !== 0;
    case "int": case "long": case "date": case "time": case "timestamp": case "timestamptz": case "timestamp_ns": case "timestamptz_ns":
      return isLong ? view.getBigInt64(0, true) : bytes.length === 4 ? BigInt(view.getInt32(0, true)) : null;
    case "float": case "double": return isLong ? view.getFloat64(0, true) : bytes.length === 4 ? view.getFloat32(0, true) : null;
    case "decimal": return bytes.length ? whole(bytes) : null;
    case "string": return bytes;
    default: return null;
  }
}

function isLess(one, other) {
  if (!(one instanceof Uint8Array)) return one < other;
  const at = one.findIndex((byte, place) => byte !== other[place]);
  return at < 0 ? one.length < other.length : at >= other.length ? false : one[at] < other[at];
}
