// A namespace: its namespaces, tables, views and properties.

import { h, icon, shown } from "../dom.js";
import { badge, card, crumbs, heading, later, longList, objectLink, properties } from "../parts.js";
import { link } from "../routes.js";
import { MAX_TOTALS, tableList } from "./table_list.js";

export async function namespace({ source, names, route, signal }) {
  const { at, parts: name, options } = route;
  if (!name.length) throw Object.assign(new Error("A namespace has a name."), { code: 404 });
  const found = await source.namespace(at, name, signal);
  const text = options.get("text") ?? "";
  const list = (kind, load, empty) => longList({
    label: `${kind} of ${name.join(".")}`, load, empty, signal, draw: (one) => objectLink(at, kind, one, false),
  });
  const searched = async (next) => {
    const page = await source.search(at, text, name, next, signal);
    return { items: page.found, next: page.next };
  };
  return h("div", {},
    crumbs(at, name),
    heading([icon("namespace"), shown(name.at(-1))], badge("namespace")),
    filter(at, name, text),
    text
      ? card(["Names that contain “", shown(text), "”"], longList({
        label: "Matching names", load: searched, empty: "No name matches.", signal,
        draw: (one) => objectLink(at, one.kind, one.name, false),
      }))
      : [
        card("Tables", tables({ source, names, at, name, signal }, () => list("table", (next) => names.objects("table", name, next), "No tables."))),
        h("div", { class: "columns" },
          card("Views", list("view", (next) => names.objects("view", name, next), "No views.")),
          card("Namespaces", list("namespace", (next) => names.namespaces(name, next), "No nested namespaces."))),
      ],
    card("Properties", properties(Object.entries(found.properties))));
}

/** The tables, with rows and sizes unless there are too many. */
function tables({ source, names, at, name, signal }, list) {
  return later(signal, () => names.objects("table", name), (page) => (page.next || page.items.length > MAX_TOTALS || !page.items.length
    ? list() : tableList({ source, at, names: page.items, label: `Tables of ${name.join(".")}`, signal, whole: false })));
}

function filter(at, name, text) {
  const field = h("input", { type: "search", id: "filter", value: text, maxlength: 200, autocomplete: "off", spellcheck: "false" });
  return h("form", { class: "filter", onsubmit: (event) => {
    event.preventDefault();
    location.hash = link(at, "namespace", name, { text: field.value.trim() });
  } }, h("label", { for: "filter" }, "Filter by name"), h("div", { class: "together" }, field, h("button", { type: "submit" }, "Filter")));
}
