// Names in SQL that could be tables: `a.b` and longer ones, outside of string literals and comments.

const PARTS = [
  String.raw`--[^\n]*`, String.raw`\/\*[^]*?(?:\*\/|$)`, "'(?:[^']|'')*'", String.raw`\$(\w*)\$[^]*?\$\1\$`,
  String.raw`(?<name>(?:"(?:[^"]|"")*"|[\p{L}_][\p{L}\p{N}_$]*)(?:\s*\.\s*(?:"(?:[^"]|"")*"|[\p{L}_][\p{L}\p{N}_$]*))*)`,
  String.raw`[\p{N}][\p{L}\p{N}_.]*`,
];
const TOKEN = new RegExp(PARTS.join("|"), "gu");
const PART = /"((?:[^"]|"")*)"|[\p{L}_][\p{L}\p{N}_$]*/gu;

/** Positions of names: `{start, parts: [{text, end}]}`. */
export function namesIn(query) {
  const found = [];
  for (const match of query.matchAll(TOKEN)) {
    if (match.groups.name === undefined) continue;
    const parts = [...match.groups.name.matchAll(PART)].map((one) => ({
      text: one[1] === undefined ? one[0] : one[1].replaceAll('""', '"'), end: match.index + one.index + one[0].length,
    }));
    found.push({ start: match.index, parts });
  }
  return found;
}

/** Objects that the first parts of a name could be, longest first. */
export function readings({ parts }) {
  const found = [];
  for (let count = parts.length; count > 1; count -= 1) {
    const namespace = parts.slice(0, count - 1).flatMap((one) => one.text.split("."));
    found.push({ name: [...namespace, parts[count - 1].text], end: parts[count - 1].end });
  }
  return found.filter((one) => !one.name.includes(""));
}

/** The name in SQL: the namespace is one schema, also with dots in it. */
export function quoted(name) {
  return [name.slice(0, -1).join("."), name.at(-1)].map(identifier).join(".");
}

export function identifier(text) {
  return `"${text.replaceAll('"', '""')}"`;
}

export function literal(text) {
  return `'${text.replaceAll("'", "''")}'`;
}
