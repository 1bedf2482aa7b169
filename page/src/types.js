// SQL names of types, from Iceberg's JSON (static page) or from the server.

const OF_ICEBERG = {
  int: "INTEGER", long: "BIGINT", string: "VARCHAR", binary: "BLOB", timestamptz: "TIMESTAMP WITH TIME ZONE", timestamptz_ns: "TIMESTAMP(9) WITH TIME ZONE",
};

const PLAIN_NAME = /^[\p{L}_][\p{L}\p{N}_]*$/u;

/** The SQL name of a type in Iceberg's JSON, equal to the name that the server sends. */
export function sqlType(type) {
  if (typeof type === "string") return OF_ICEBERG[type] ?? type.toUpperCase().replace(/^FIXED\[(\d+)\]$/, "FIXED($1)").replace(/, /g, ",");
  const part = (one, isRequired) => `${sqlType(one)}${isRequired ? " NOT NULL" : ""}`;
  const named = (name) => (PLAIN_NAME.test(name) ? name : `"${name.replaceAll('"', '""')}"`);
  if (type.type === "struct") return `STRUCT(${type.fields.map((one) => `${named(one.name)} ${part(one.type, one.required)}`).join(", ")})`;
  if (type.type === "list") return type["element-required"] ? `ARRAY(${part(type.element, true)})` : `${sqlType(type.element)}[]`;
  if (type.type === "map") return `MAP(${sqlType(type.key)}, ${part(type.value, type["value-required"])})`;
  return String(type.type);
}

/** The type in a column header: a struct without its fields, and a short name of times with a zone. */
export function shortType(type) {
  if (/^STRUCT\(/.test(type)) return "STRUCT";
  const name = type.replaceAll(" WITH TIME ZONE", "TZ");
  return name.length > 24 ? `${name.slice(0, 23)}…` : name;
}
