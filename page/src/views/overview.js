// The lakehouse: its sizes, latest versions, and tables.

import { h, replace, shown } from "../dom.js";
import { badge, card, facts, heading, later, longList, objectLink, properties } from "../parts.js";
import { link } from "../routes.js";
import { sparkline } from "../sparkline.js";
import { number, size, when } from "../words.js";
import { entryLine } from "./log.js";
import { MAX_TOTALS, tableList } from "./table_list.js";

const MAX_CHANGES = 8;

export async function overview({ source, lakehouse, names, route, signal }) {
  const { at } = route;
  const state = at === "latest" ? lakehouse : await source.address(`@${at.replace("~", "/")}`, signal);
  const newest = source.log(state.version + 1, { size: 100 }, signal);
  const numbers = h("div", {});
  const tables = h("div", {});
  const draw = (counts, totals) => replace(numbers, facts([
    ["Version", number(state.version)], ["Last change", when(state["created-at-millis"])],
    counts ? ["Namespaces", counts.namespaces] : null, counts ? ["Tables", counts.tables] : null, counts?.views ? ["Views", counts.views] : null,
    totals ? ["Rows", number(sum(totals, "rows"))] : null, totals ? ["Size of data", size(sum(totals, "size-bytes"))] : null,
  ]));
  draw();
  content({ source, lakehouse, names, at, newest, signal, draw, tables });
  return h("div", {},
    heading(lakehouse.name ? shown(lakehouse.name) : "Lakehouse"),
    lakehouse.uri ? h("p", { class: "uri" }, shown(lakehouse.uri)) : null,
    numbers,
    h("div", { class: "overview" },
      h("div", {}, tables),
      card("Activity", later(signal, () => newest, (found) => (found.entries.length
        ? [sparkline(found.entries), h("ul", { class: "brief" }, found.entries.slice(0, MAX_CHANGES).map((one) => h("li", {}, entryLine(one), h("span", { class: "quiet" }, when(one["created-at-millis"])))))]
        : h("p", { class: "quiet" }, "Nothing has changed yet."))),
      h("p", {}, h("a", { href: link(at, "log") }, "Show the log")))),
    tags(lakehouse),
    Object.keys(lakehouse.properties ?? {}).length ? card("Properties", properties(Object.entries(lakehouse.properties))) : null);
}

/** All tables of a small lakehouse, else the tables that changed last. */
async function content({ source, lakehouse, names, at, newest, signal, draw, tables }) {
  const all = await source.search(at, "", undefined, undefined, signal, MAX_TOTALS).catch(() => null);
  if (signal.aborted || !all) return;
  const show = (title, found, empty, then) => replace(tables, card(title, found.length ? tableList({ source, at, names: found, label: title, signal, then }) : h("p", { class: "quiet" }, empty)));
  if (all.next === null) {
    const of = (kind) => all.found.filter((one) => one.kind === kind);
    const counts = { namespaces: number(of("namespace").length), tables: number(of("table").length), views: of("view").length };
    draw(counts);
    return show("Tables", of("table").map((one) => one.name), "No table yet.", (totals) => draw(counts, totals));
  }
  if (!source.counts) { // without a server
    return replace(tables, card("Namespaces", longList({
      label: "Namespaces", empty: "No namespace yet.", signal, load: (next) => names.namespaces([], next), draw: (name) => objectLink(at, "namespace", name, false),
    })));
  }
  if (lakehouse.may.counts) source.counts(at, signal).then((found) => {
    const most = found["max-counted"], text = (one) => (one > most ? `${number(most)}+` : number(one));
    draw({ namespaces: text(found.namespaces), tables: text(found.tables), views: found.views ? text(found.views) : null });
  }, () => {});
  const changed = new Map();
  for (const entry of (await newest.catch(() => ({ entries: [] }))).entries) {
    for (const one of entry.transactions.flatMap((each) => each.changes ?? [])) if (one.kind === "table" && one.sign !== "-") changed.set(JSON.stringify(one.name), one.name);
  }
  if (!signal.aborted) show("Tables that changed last", [...changed.values()].slice(0, 20), "The newest versions changed no table.");
}

function sum(totals, name) {
  return totals.reduce((all, one) => all + (one?.[name] ?? 0), 0);
}

function tags(lakehouse) {
  const named = Object.entries(lakehouse.tags ?? {});
  if (!named.length) return null;
  return card("Tags", h("ul", { class: "chips" }, named.map(([name, version]) =>
    h("li", {}, h("a", { href: link(`tag~${name}`, "overview") }, shown(name)), badge(`version ${version}`)))));
}
