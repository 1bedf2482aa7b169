// Description of a table from its definition and Iceberg's metadata.

import { sqlType } from "../types.js";
import { Damaged } from "./core.js";

const MAX_SNAPSHOTS = 200;

/** The same answer as a server's. For an external table, without metadata, from its definition. */
export function describe(name, table, metadata) {
  const base = { name, id: table.id, type: table.type, properties: table.properties, columns: table.columns };
  const none = { rows: null, files: null, "delete-files": null, "size-bytes": null };
  if (metadata === null) {
    return {
      ...base, "format-version": "–", location: table.format.metadata_location ?? "", "last-updated-millis": null, partitions: [], order: [],
      totals: none, "current-snapshot-id": null, "n-snapshots": 0, snapshots: [], references: {},
    };
  }
  if (typeof metadata !== "object") throw new Damaged("it is not an object");
  const schema = metadata.schemas?.find((one) => one["schema-id"] === metadata["current-schema-id"]) ?? metadata.schema ?? { fields: [] };
  const keys = new Set(schema["identifier-field-ids"] ?? []);
  const columnOf = (id) => schema.fields.find((one) => one.id === id)?.name ?? String(id);
  const spec = metadata["partition-specs"]?.find((one) => one["spec-id"] === metadata["default-spec-id"]) ?? { fields: [] };
  const order = metadata["sort-orders"]?.find((one) => one["order-id"] === metadata["default-sort-order-id"]) ?? { fields: [] };
  const snapshots = [...(metadata.snapshots ?? [])].sort((a, b) => b["timestamp-ms"] - a["timestamp-ms"]);
  const current = snapshots.find((one) => one["snapshot-id"] === metadata["current-snapshot-id"]) ?? null;
  return {
    ...base,
    "format-version": metadata["format-version"], location: metadata.location, "last-updated-millis": metadata["last-updated-ms"],
    columns: schema.fields.map((one) => ({
      id: one.id, name: one.name, type: sqlType(one.type), required: one.required, comment: one.doc ?? "", "is-key": keys.has(one.id),
    })),
    partitions: spec.fields.map((one) => ({ name: one.name, transform: one.transform, column: columnOf(one["source-id"]) })),
    order: order.fields.map((one) => ({ column: columnOf(one["source-id"]), transform: one.transform, direction: one.direction, nulls: one["null-order"] })),
    properties: metadata.properties ?? {},
    totals: current === null ? { rows: 0, files: 0, "delete-files": 0, "size-bytes": 0 } : {
      rows: liveRows(current), files: count(current, "total-data-files"),
      "delete-files": count(current, "total-delete-files"), "size-bytes": count(current, "total-files-size"),
    },
    "current-snapshot-id": current === null ? null : String(current["snapshot-id"]),
    "n-snapshots": snapshots.length,
    snapshots: snapshots.slice(0, MAX_SNAPSHOTS).map((one) => ({
      id: String(one["snapshot-id"]), "created-at-millis": one["timestamp-ms"], operation: one.summary?.operation ?? "",
      "added-rows": count(one, "added-records"), "deleted-rows": count(one, "deleted-records"),
      "added-files": count(one, "added-data-files"), rows: liveRows(one),
    })),
    references: Object.fromEntries(Object.entries(metadata.refs ?? {}).map(([name, one]) => [name, { type: one.type, "snapshot-id": String(one["snapshot-id"]) }])),
  };
}

function count(snapshot, name) {
  const text = snapshot.summary?.[name];
  return text !== undefined && /^\d+$/.test(text) ? Number(text) : null;
}

function liveRows(snapshot) {
  const rows = count(snapshot, "total-records");
  if (count(snapshot, "total-equality-deletes")) return null; // one of them may delete any number of rows
  return rows === null ? null : Math.max(0, rows - (count(snapshot, "total-position-deletes") ?? 0));
}

/** The JSON of a metadata file. Snapshot ids exceed JavaScript's integers and become text. */
export function parsed(text) {
  return JSON.parse(text.replace(/("(?:current-|parent-)?snapshot-id"\s*:\s*)(-?\d{16,})(?=\s*[,}])/g, '$1"$2"'));
}
