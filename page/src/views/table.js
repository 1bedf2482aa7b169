// A table: its columns, rows, snapshots, properties, and the versions that changed it.

import { h, icon, lines, shown } from "../dom.js";
import { dataGrid } from "../datagrid.js";
import { badge, card, crumbs, facts, grid, heading, later, note, properties, tabs } from "../parts.js";
import { link, versionState } from "../routes.js";
import { readable } from "../sql/completion.js";
import { counted, number, size, when } from "../words.js";

const TABS = [["columns", "Columns"], ["rows", "Preview"], ["snapshots", "Snapshots"], ["properties", "Properties"], ["history", "History"]];

const PREVIEW_ROWS = 200;

export async function table({ source, lakehouse, route, signal }) {
  const { at, parts: name, options } = route;
  if (name.length < 2) throw Object.assign(new Error("A table has a namespace and a name."), { code: 404 });
  const found = await source.table(at, name, signal);
  const chosen = offeredTabs(lakehouse).some(([key]) => key === options.get("tab")) ? options.get("tab") : "columns";
  const bodies = {
    columns: () => [columns(found.columns), layout(found)],
    rows: () => rows({ source, at, name, signal }),
    snapshots: () => snapshots(found),
    properties: () => properties([["id", found.id], ["location", found.location], ["format version", found["format-version"]], ...Object.entries(found.properties)]),
    history: () => later(signal, () => source.history(at, name, signal), (past) => history(past.entries)),
  };
  const { totals } = found;
  return h("div", {},
    crumbs(at, name),
    heading([icon("table"), shown(name.at(-1))], badge(found.type === "managed" ? "table" : `${found.type} table`),
      lakehouse.may.sql ? h("a", { class: "button", href: link(at, "sql", [], { q: `SELECT * FROM ${readable(name)} LIMIT 100` }) }, icon("sql"), "Query") : null),
    found.properties.comment ? h("p", { class: "comment" }, lines(found.properties.comment)) : null,
    facts([
      ["Rows", number(totals.rows)], ["Size", size(totals["size-bytes"])], ["Files", number(totals.files)],
      totals["delete-files"] ? ["Delete files", number(totals["delete-files"])] : null,
      ["Snapshots", number(found["n-snapshots"])], ["Last change", when(found["last-updated-millis"])],
    ]),
    tabs("Parts of the table", chosen, offeredTabs(lakehouse).map(([key, text]) =>
      [key, text, link(at, "table", name, key === "columns" ? {} : { tab: key })])),
    card(null, bodies[chosen]()));
}

function offeredTabs(lakehouse) {
  return TABS.filter(([key]) => lakehouse.may[key] !== false);
}

export function columns(given) {
  const heads = [["Name", (one) => h("span", { class: "column" }, shown(one.name))], ["Type", (one) => h("code", {}, shown(one.type))]];
  if (given.some((one) => one["is-key"] || one.required)) {
    heads.push(["Rules", (one) => [one["is-key"] ? badge("key", "good") : null, one.required ? badge("required") : null]]);
  }
  if (given.some((one) => one.comment)) heads.push(["Comment", (one) => lines(one.comment)]);
  return grid("Columns", heads.map(([text]) => text), given.map((one) => heads.map(([, cell]) => cell(one))), "The table has no columns.");
}

function layout(found) {
  const plain = (one) => (one.transform === "identity" ? shown(one.column) : [shown(one.transform), "(", shown(one.column), ")"]);
  if (!found.partitions.length && !found.order.length) return null;
  return h("div", { class: "columns" },
    found.partitions.length ? h("div", {}, h("h3", {}, "Partitioned by"), h("ul", { class: "chips" },
      found.partitions.map((one) => h("li", {}, h("code", {}, plain(one)))))) : null,
    found.order.length ? h("div", {}, h("h3", {}, "Sorted by"), h("ul", { class: "chips" },
      found.order.map((one) => h("li", {}, h("code", {}, plain(one), ` ${one.direction}, ${one.nulls}`))))) : null);
}

function rows({ source, at, name, signal }) {
  return later(signal, () => source.rows(at, name, PREVIEW_ROWS, signal), (found) => rowsOf(found, `Rows of ${name.join(".")}`, name.at(-1)), "Reading rows…");
}

/** Rows of a preview or a query. */
export function rowsOf(found, label, name, tools = []) {
  return [
    found.problem ? note("", `Preview: ${found.problem}.`) : null,
    found["omitted-columns"].length ? note("", `${counted(found["omitted-columns"].length, "more column")} not shown.`) : null,
    dataGrid({ label, name, columns: found.columns, rows: found.rows, tools }),
  ];
}

function snapshots(found) {
  const names = new Map();
  for (const [name, one] of Object.entries(found.references)) names.set(one["snapshot-id"], [...(names.get(one["snapshot-id"]) ?? []), name]);
  const hidden = found["n-snapshots"] - found.snapshots.length;
  return [
    grid("Snapshots", ["Snapshot", "Operation", ["Rows added", "number"], ["Rows removed", "number"], ["Rows after", "number"], "Committed"], found.snapshots.map((one) => [
      [h("code", {}, one.id), (names.get(one.id) ?? []).map((name) => badge(shown(name), "good"))],
      shown(one.operation), number(one["added-rows"]), number(one["deleted-rows"]), number(one.rows), when(one["created-at-millis"]),
    ]), "Nothing was written yet."),
    hidden > 0 ? h("p", { class: "quiet" }, `${counted(hidden, "older snapshot")} are not shown.`) : null,
  ];
}

function history(entries) {
  return grid("Versions that changed the table", ["Version", "Change", "Name", "Committed", "Table", "Rows"], entries.map((one) => [
    h("a", { href: link("latest", "version", [String(one.version)]) }, number(one.version)), badge(one.action), shown(one.name.join(".")),
    when(one["created-at-millis"]),
    one.action === "dropped" ? "" : h("a", { href: link(versionState(one.version), "table", one.name) }, "Table in this version"),
    one.action === "dropped" || one.version === 0 ? "" : h("a", { href: link("latest", "compare", [String(one.version - 1), String(one.version)], { object: one.name.join(".") }) }, "What changed"),
  ]), "No version is known.");
}
