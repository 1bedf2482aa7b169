// A namespace: its namespaces, tables, views and properties.

import { h, icon, shown } from "../dom.js";
import { badge, card, crumbs, heading, later, longList, objectLink, properties } from "../parts.js";
import { link } from "../routes.js";

export async function namespace({ source, route, signal }) {
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
    crumbs(at, name, "namespace"),
    heading([icon("namespace"), shown(name.at(-1))], badge("namespace")),
    filter(at, name, text),
    text
      ? card(["Names with “", shown(text), "”"], longList({
        label: "Names that fit", load: searched, empty: "No name fits.", signal,
        draw: (one) => objectLink(at, one.kind, one.name, false),
      }))
      : [
        card("Tables", list("table", (next) => source.objects(at, "table", name, next, signal), "There is no table here.")),
        h("div", { class: "columns" },
          card("Views", list("view", (next) => source.objects(at, "view", name, next, signal), "There is no view here.")),
          card("Namespaces", list("namespace", (next) => source.namespaces(at, name, next, signal), "None is nested in this one."))),
      ],
    card("Properties", properties(Object.entries(found.properties))));
}

function filter(at, name, text) {
  const field = h("input", { type: "search", id: "filter", value: text, maxlength: 200, autocomplete: "off", spellcheck: "false" });
  return h("form", { class: "filter", onsubmit: (event) => {
    event.preventDefault();
    location.hash = link(at, "namespace", name, { text: field.value.trim() });
  } }, h("label", { for: "filter" }, "Names here that hold"), h("div", { class: "together" }, field, h("button", { type: "submit" }, "Filter")));
}
