// The difference between two versions: changed objects, and for each table its schema and the first changed rows.

import { append, h, icon, replace, shown } from "../dom.js";
import { dataGrid } from "../datagrid.js";
import { badge, card, grid, heading, later, note } from "../parts.js";
import { link, linkTo, versionState } from "../routes.js";
import { counted, number } from "../words.js";

const WORDS = { "+": "added", "-": "removed", "~": "changed", "=": "set" };
const MAX_ROWS = 200;

export async function compare({ source, lakehouse, route, signal }) {
  const versions = route.parts.map((one) => (/^\d{1,15}$/.test(one) ? Number(one) : NaN));
  if (versions.length !== 2 || versions.some(Number.isNaN)) throw Object.assign(new Error("Two versions are compared, by their numbers."), { code: 404 });
  const [from, to] = versions.sort((one, other) => one - other);
  const limits = { min: lakehouse["oldest-version"], max: lakehouse.version, step: 1, type: "number", required: true };
  const fields = [h("input", { ...limits, id: "from", value: from }), h("input", { ...limits, id: "to", value: to })];
  return h("div", {},
    h("nav", { class: "crumbs", "aria-label": "Above" }, h("ol", {}, h("li", {}, h("a", { href: link("latest", "log") }, "Log")))),
    heading(`Version ${number(from)} to ${number(to)}`),
    h("form", { class: "inline", onsubmit: (event) => {
      event.preventDefault();
      location.hash = link("latest", "compare", fields.map((one) => one.value));
    } }, h("label", { for: "from" }, "Changes after version"), fields[0], h("label", { for: "to" }, "up to version"), fields[1], h("button", { type: "submit" }, "Compare"),
    [from, to].map((one) => h("a", { href: link(versionState(one), "overview") }, `Open version ${number(one)}`))),
    differences({ source, lakehouse, from, to, signal, opened: route.options.get("object") }));
}

/** The comparison of two versions. `opened` is the name of an object whose rows are shown immediately. */
export function differences({ source, lakehouse, from, to, signal, opened }) {
  const list = h("ul", { class: "differences" }), foot = h("div", { class: "more" });
  const draw = (found) => {
    const isOne = found.changes.filter((one) => one.kind === "table" && one.sign !== "-").length === 1;
    append(list, found.changes.map((one) => difference({ source, lakehouse, from, to, signal, one, isOpen: isOne || one.name.join(".") === opened })));
    replace(foot, found.next !== null
      ? h("button", { type: "button", onclick: () => source.diff(from, to, found.next, signal).then(draw, (error) => replace(foot, note("bad", error.message))) }, "More changes")
      : h("p", { class: "quiet" }, list.children.length ? counted(list.children.length, "changed object") : "Nothing that you may see differs."));
    return [list, foot];
  };
  return card("Changed objects", later(signal, () => source.diff(from, to, 0, signal), draw, "Comparing…"));
}

function difference({ source, lakehouse, from, to, signal, one, isOpen }) {
  const at = one.sign === "-" ? versionState(from) : versionState(to);
  const label = [h("span", { class: `sign ${WORDS[one.sign]}`, "aria-hidden": "true" }, one.sign === "-" ? "−" : one.sign),
    icon(one.kind), h("span", { class: "name" }, shown(one.name.join("."))), badge(`${one.kind} ${WORDS[one.sign]}`)];
  const open = h("a", { href: linkTo(at, one.kind, one.name) }, `Open the ${one.kind}`);
  if (one.kind !== "table" || one.sign === "-") return h("li", { class: "difference" }, h("div", { class: "head" }, label, open));
  const body = h("div", { class: "details" });
  let isRead = false;
  const read = () => {
    if (isRead) return;
    isRead = true;
    append(body, [open, schemaChanges({ source, one, from, to, signal }), rowChanges({ source, lakehouse, one, from, to, signal })]);
  };
  const details = h("details", { class: "difference", open: isOpen, ontoggle: () => details.open && read() }, h("summary", { class: "head" }, icon("chevron"), label), body);
  if (isOpen) read();
  return h("li", {}, details);
}

function schemaChanges({ source, one, from, to, signal }) {
  if (one.sign === "+") return null;
  const read = () => Promise.all([source.table(versionState(from), one.name, signal).catch((error) => {
    if (error.code !== 404) throw error;
    return null;
  }), source.table(versionState(to), one.name, signal)]);
  return later(signal, read, ([before, after]) => {
    if (!before || before.id !== after.id) return note("", `Version ${number(from)} has another table, or none, of this name.`);
    const found = columnsChanged(before.columns, after.columns).concat(propertiesChanged(before, after));
    return found.length ? grid("Schema changes", ["", "What", "Before", "After"], found.map(([sign, what, old, now]) =>
      [h("span", { class: `sign ${WORDS[sign]}` }, sign === "-" ? "−" : sign), shown(what), old === "" ? "" : h("code", {}, shown(old)), now === "" ? "" : h("code", {}, shown(now))])) : h("p", { class: "quiet" }, "The schema and the properties are the same.");
  }, "Reading the schemas…");
}

/** The changes of a schema. Columns are compared by id, so a renamed column is changed, not removed and added. */
function columnsChanged(before, after) {
  const text = (one) => `${one.name} ${one.type}${one.required ? " not null" : ""}${one.comment ? ` comment '${one.comment}'` : ""}`;
  const old = new Map(before.map((one) => [one.id, one])), now = new Map(after.map((one) => [one.id, one]));
  return [
    ...after.filter((one) => !old.has(one.id)).map((one) => ["+", `column ${one.name}`, "", text(one)]),
    ...before.filter((one) => !now.has(one.id)).map((one) => ["-", `column ${one.name}`, text(one), ""]),
    ...after.filter((one) => old.has(one.id) && text(old.get(one.id)) !== text(one)).map((one) => ["~", `column ${one.name}`, text(old.get(one.id)), text(one)]),
  ];
}

function propertiesChanged(before, after) {
  const plain = (list, text) => list.map(text).join(", ");
  const partition = (one) => (one.transform === "identity" ? one.column : `${one.transform}(${one.column})`);
  const facts = (one) => ({ ...one.properties, "partitioned by": plain(one.partitions, partition), "sorted by": plain(one.order, (each) => `${partition(each)} ${each.direction}`) });
  const [old, now] = [facts(before), facts(after)];
  return [...new Set([...Object.keys(old), ...Object.keys(now)])].sort().filter((name) => (old[name] ?? "") !== (now[name] ?? ""))
    .map((name) => [!old[name] ? "+" : !now[name] ? "-" : "~", name, old[name] ?? "", now[name] ?? ""]);
}

function rowChanges({ source, lakehouse, one, from, to, signal }) {
  if (!lakehouse.may.rows) return note("", "This server shows no rows.");
  return later(signal, () => source.rowChanges(versionState(to), one.name, from, MAX_ROWS, signal), (found) => {
    const total = found.counts["+"] + found.counts["-"] + found.counts["~"];
    if (!total) return h("p", { class: "quiet" }, "No row changed.");
    const least = found["is-counted"] ? "" : "at least ";
    return [
      h("p", { class: "counts" }, [["+", "added"], ["-", "removed"], ["~", "updated"]].filter(([sign]) => found.counts[sign]).map(([sign, word]) =>
        h("span", { class: `count ${WORDS[sign]}` }, `${sign === "-" ? "−" : sign} ${least}${number(found.counts[sign])} ${word}`)),
      found.rows.length < total ? h("span", { class: "quiet" }, `The first ${number(found.rows.length)} are shown.`) : null),
      dataGrid({ label: `Changed rows of ${one.name.join(".")}`, name: `${one.name.at(-1)}-${from}-${to}`, columns: found.columns, rows: found.rows, signs: found.signs, before: found.before }),
    ];
  }, "Comparing rows…");
}
