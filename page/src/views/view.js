// A view: its text in each dialect, and its columns.

import { h, icon, lines, shown } from "../dom.js";
import { badge, card, crumbs, facts, heading, properties } from "../parts.js";
import { columns } from "./table.js";

export async function view({ source, route, signal }) {
  const { at, parts: name } = route;
  if (name.length < 2) throw Object.assign(new Error("A view has a namespace and a name."), { code: 404 });
  const found = await source.view(at, name, signal);
  return h("div", {},
    crumbs(at, name),
    heading([icon("view"), shown(name.at(-1))], badge("view")),
    found.namespace.length ? facts([["Default namespace", shown(found.namespace.join("."))]]) : null,
    found.queries.map((one) => card(["Query ", badge(shown(one.dialect))], h("pre", { tabindex: "0", role: "region", "aria-label": "Text of the view" }, h("code", {}, lines(one.sql))))),
    found.columns.length ? card("Columns", columns(found.columns)) : null,
    card("Properties", properties(Object.entries(found.properties))));
}
