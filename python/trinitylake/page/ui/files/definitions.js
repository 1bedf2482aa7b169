// Definition files (format §6): protobuf, as far as the page shows it.

import { Damaged } from "./arrow.js";

const TYPES = ["boolean", "smallint", "int", "bigint", "decimal", "real", "double", "char", "varchar", "date", "time", "timetz",
  "timestamp", "timestamptz", "fixed", "binary", "struct", "map", "array"];
const KINDS = ["managed", "external", "federated"];
const LENGTH = new Set(["char", "varchar", "fixed", "binary"]);

export function lakehouseOf(bytes) {
  const found = messageOf(bytes);
  const version = number(found, 2);
  if (version > 0) throw new Damaged(`the lakehouse has version ${version} of the format, which is newer than this page`);
  return {
    name: text(found, 1),
    order: number(found, 3) || 128,
    widths: { namespace: number(found, 4) || 100, table: number(found, 5) || 100, view: number(found, 13) || 100 },
    properties: map(found, 8),
    snapshots: map(found, 12),
    // Where it lies and lay, as locations in Iceberg's metadata begin.
    roots: [text(found, 16), ...all(found, 17).map((one) => new TextDecoder().decode(one))].filter((one) => one),
  };
}

export function namespaceOf(bytes) {
  return { properties: map(messageOf(bytes), 2) };
}

export function tableOf(bytes) {
  const found = messageOf(bytes);
  return {
    id: text(found, 1),
    type: KINDS[number(found, 8)] ?? "unknown",
    columns: columns(found, 2),
    format: map(found, 10),
    properties: map(found, 11),
  };
}

export function viewOf(bytes) {
  const found = messageOf(bytes);
  const namespace = text(found, 4);
  return {
    id: text(found, 1),
    columns: columns(found, 2),
    queries: all(found, 3).map((one) => messageOf(one)).map((one) => ({ dialect: text(one, 1), sql: text(one, 2) })),
    namespace: namespace ? namespace.split(".") : [],
    properties: map(found, 5),
  };
}

function columns(found, field) {
  return all(found, field).flatMap((schema) => all(messageOf(schema), 1)).map((one) => columnOf(messageOf(one)));
}

function columnOf(found) {
  return { name: text(found, 2), type: typeOf(found), required: number(found, 4) === 0, comment: map(found, 5).comment ?? "", "is-key": false };
}

function typeOf(found) {
  const type = TYPES[number(found, 3)] ?? "unknown";
  const inner = (field) => all(found, field).map((one) => messageOf(one));
  if (type === "struct") return `struct<${inner(6).map((one) => `${text(one, 2)} ${typeOf(one)}`).join(", ")}>`;
  if (type === "map") return `map<${inner(7).map(typeOf)}, ${inner(8).map(typeOf)}>`;
  if (type === "array") return `array<${inner(9).map(typeOf)}>`;
  if (type === "decimal") return `decimal(${number(found, 11)},${number(found, 12)})`;
  return LENGTH.has(type) && number(found, 10) ? `${type}(${number(found, 10)})` : type;
}

/** The fields of a message, by number: numbers, and bytes. Throws `Damaged`. */
function messageOf(bytes) {
  const fields = new Map();
  let at = 0;
  const varint = () => {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      if (at >= bytes.length) break;
      const byte = bytes[at];
      at += 1;
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
    throw new Damaged("a definition is damaged");
  };
  while (at < bytes.length) {
    const tag = Number(varint());
    const wire = tag & 7;
    let value;
    if (wire === 0) value = Number(varint());
    else {
      const length = wire === 2 ? Number(varint()) : wire === 1 ? 8 : wire === 5 ? 4 : -1;
      if (length < 0 || at + length > bytes.length) throw new Damaged("a definition is damaged");
      value = bytes.subarray(at, at + length);
      at += length;
    }
    const field = Math.floor(tag / 8);
    fields.set(field, [...(fields.get(field) ?? []), value]);
  }
  return fields;
}

function all(found, field) {
  return (found.get(field) ?? []).filter((one) => one instanceof Uint8Array);
}

function number(found, field) {
  const value = (found.get(field) ?? []).at(-1);
  return typeof value === "number" ? value : 0;
}

function text(found, field) {
  const value = all(found, field).at(-1);
  return value === undefined ? "" : new TextDecoder().decode(value);
}

function map(found, field) {
  const entries = all(found, field).map((one) => messageOf(one)).map((one) => [text(one, 1), text(one, 2)]);
  return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)));
}
