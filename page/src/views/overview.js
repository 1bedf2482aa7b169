// The lakehouse: its content and latest versions.

import { h, shown } from "../dom.js";
import { badge, card, facts, heading, later, longList, objectLink, properties } from "../parts.js";
import { link } from "../routes.js";
import { number, when } from "../words.js";
import { entryLine } from "./log.js";

export async function overview({ source, lakehouse, route, signal }) {
  const { at } = route;
  const state = at === "latest" ? lakehouse : await source.address(`@${at.replace("~", "/")}`, signal);
  const counted = (value, most) => (value > most ? `${number(most)}+` : number(value));
  return h("div", {},
    heading(lakehouse.name ? shown(lakehouse.name) : "Lakehouse"),
    lakehouse.uri ? h("p", { class: "uri" }, shown(lakehouse.uri)) : null,
    lakehouse.may.counts
      ? later(signal, () => source.counts(at, signal), (found) => facts([
        ["Version", number(state.version)], ["Made", when(state["created-at-millis"])],
        ["Namespaces", counted(found.namespaces, found["max-counted"])],
        ["Tables", counted(found.tables, found["max-counted"])],
        ["Views", counted(found.views, found["max-counted"])],
      ]), "Counting…")
      : facts([["Version", number(state.version)], ["Made", when(state["created-at-millis"])]]),
    h("div", { class: "columns" },
      card("Namespaces", longList({
        label: "Namespaces", empty: "There is no namespace yet.", signal,
        load: (next) => source.namespaces(at, [], next, signal),
        draw: (name) => objectLink(at, "namespace", name, false),
      })),
      card("Newest changes",
        later(signal, () => source.log(state.version + 1, "", signal), (found) =>
          found.entries.length
            ? h("ul", { class: "brief" }, found.entries.slice(0, 8).map((one) => h("li", {}, entryLine(one), h("span", { class: "quiet" }, when(one["created-at-millis"])))))
            : h("p", { class: "quiet" }, "Nothing has changed yet.")),
        h("p", {}, h("a", { href: link(at, "log") }, "The whole log")))),
    tags(lakehouse),
    Object.keys(lakehouse.properties ?? {}).length ? card("Properties", properties(Object.entries(lakehouse.properties))) : null);
}

function tags(lakehouse) {
  const named = Object.entries(lakehouse.tags ?? {});
  if (!named.length) return null;
  return card("Tags", h("ul", { class: "chips" }, named.map(([name, version]) =>
    h("li", {}, h("a", { href: link(`tag~${name}`, "overview") }, shown(name)), badge(`version ${version}`)))));
}
