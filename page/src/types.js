// SQL names of types, from Iceberg's JSON (static page) or from DuckDB (queries).

const OF_ICEBERG = { long: "bigint", float: "real", string: "varchar", timestamp_ns: "timestamp(9)", timestamptz_ns: "timestamptz(9)" };
const OF_DUCKDB = {
  integer: "int", float: "real", blob: "binary", "timestamp with time zone": "timestamptz", timestamp_ns: "timestamp(9)", "time with time zone": "timetz",
};

const PLAIN_NAME = /^[\p{L}_][\p{L}\p{N}_]*$/u;

/** The SQL name of a type in Iceberg's JSON, equal to the name that the server sends. */
export function sqlType(type) {
  if (typeof type === "string") return OF_ICEBERG[type] ?? type.replace(/^fixed\[(\d+)\]$/, "fixed($1)").replace(/^decimal\((\d+),\s*(\d+)\)$/, "decimal($1,$2)");
  const part = (one, isRequired) => `${sqlType(one)}${isRequired ? " not null" : ""}`;
  const named = (name) => (PLAIN_NAME.test(name) ? name : `"${name.replaceAll('"', '""')}"`);
  if (type.type === "struct") return `row(${type.fields.map((one) => `${named(one.name)} ${part(one.type, one.required)}`).join(", ")})`;
  if (type.type === "list") return `array<${part(type.element, type["element-required"])}>`;
  if (type.type === "map") return `map<${sqlType(type.key)},${part(type.value, type["value-required"])}>`;
  return String(type.type);
}

/** The type in a column header: a nested type without its parts. */
export function shortType(type) {
  const name = type === type.toUpperCase() ? OF_DUCKDB[type.toLowerCase()] ?? type.toLowerCase() : type;
  if (/^(row|struct)\b/.test(name)) return "row";
  return name.length > 24 ? `${name.slice(0, 23)}…` : name;
}
