// Values of Parquet files as text by Iceberg's types, equal to a server's.

const MAX_VALUE = 1000;
const DAY = 86_400_000n;

/** Text of a value, null for NULL; by default cut at 1,000 characters. `type` is Iceberg's. */
export function textOf(value, type, longest = MAX_VALUE) {
  if (value === null || value === undefined) return null;
  const text = typeof type === "object" ? json(nested(value, type)) : plain(value, type, longest);
  return text.length > longest ? `${text.slice(0, longest)}…` : text;
}

/** JSON with the same spaces as a server's. */
function json(value) {
  if (Array.isArray(value)) return `[${value.map(json).join(", ")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${json(one)}`).join(", ")}}`;
}

function nested(value, type) {
  if (value === null || value === undefined) return null;
  if (typeof type !== "object") {
    return typeof value === "boolean" || (type === "int" && typeof value === "number") ? value : ofJson(value, type);
  }
  if (type.type === "list") return value.map((one) => nested(one, type.element));
  if (type.type === "map") return Object.entries(value).map(([key, one]) => [nested(key, type.key), nested(one, type.value)]);
  return Object.fromEntries(type.fields.map((one) => [one.name, nested(value[one.name], one.type)]));
}

/** Numbers stay numbers if JSON can represent them. */
function ofJson(value, type) {
  if (type === "long" && Number.isSafeInteger(Number(value))) return Number(value);
  if ((type === "double" || type === "float") && Number.isFinite(value)) return value;
  return plain(value, type);
}

function plain(value, type, longest = MAX_VALUE) {
  const [kind, scale] = partsOf(type);
  switch (kind) {
    case "float": case "double": return float(Number(value));
    case "decimal": return decimal(whole(value), scale);
    case "date": return day(BigInt(value) * DAY);
    case "time": return clock(BigInt(value), 6);
    case "timestamp": return moment(BigInt(value), 6);
    case "timestamptz": return `${moment(BigInt(value), 6)}+00:00`;
    case "timestamp_ns": return moment(BigInt(value), 9);
    case "timestamptz_ns": return `${moment(BigInt(value), 9)}+00:00`;
    case "uuid": return hex(value).replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
    default: return value instanceof Uint8Array ? hex(value.subarray(0, longest)) : value instanceof Date ? value.toISOString() : String(value);
  }
}

function partsOf(type) {
  const [, scale] = /^decimal\(\s*\d+\s*,\s*(\d+)\s*\)$/.exec(type) ?? [];
  return scale === undefined ? [type, 0] : ["decimal", Number(scale)];
}

/** An integer from big-endian bytes in two's complement. */
export function whole(value) {
  if (!(value instanceof Uint8Array)) return BigInt(value);
  return BigInt.asIntN(8 * value.length, value.reduce((sum, byte) => (sum << 8n) | BigInt(byte), 0n));
}

function decimal(number, scale) {
  const digits = String(number < 0n ? -number : number).padStart(scale + 1, "0");
  const text = scale ? `${digits.slice(0, -scale)}.${digits.slice(-scale)}` : digits;
  return number < 0n ? `-${text}` : text;
}

function float(number) {
  if (!Number.isFinite(number)) return String(number);
  return Number.isInteger(number) && Math.abs(number) < 1e15 ? `${Object.is(number, -0) ? "-0" : number}.0` : String(number);
}

function moment(number, digits) {
  const millis = 10n ** BigInt(digits - 3);
  const inDay = ((number % (DAY * millis)) + DAY * millis) % (DAY * millis);
  return `${day((number - inDay) / millis)} ${clock(inDay, digits)}`;
}

function day(millis) {
  const date = new Date(Number(millis));
  return Number.isNaN(date.getTime()) ? `${millis / DAY} days` : date.toISOString().split("T")[0];
}

function clock(number, digits) {
  const second = 10n ** BigInt(digits);
  const two = (part) => String(part).padStart(2, "0");
  const seconds = number / second;
  const fraction = number % second ? `.${String(number % second).padStart(digits, "0")}` : "";
  return `${two(seconds / 3600n)}:${two((seconds / 60n) % 60n)}:${two(seconds % 60n)}${fraction}`;
}

function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
