// Search for names, by the server.

import { h, shown } from "../dom.js";
import { badge, card, heading, longList, objectLink } from "../parts.js";

export async function search({ source, route, signal, field }) {
  const text = (route.options.get("text") ?? "").trim();
  if (document.activeElement !== field) field.value = text;
  if (!text) return h("div", {}, heading("Search"), h("p", { class: "quiet" }, "Write a part of a name above."));
  return h("div", {},
    heading(["Names with “", shown(text), "”"]),
    card(null, longList({
      label: "What was found", empty: "No name has this in it.", signal,
      load: async (next) => {
        const found = await source.search(route.at, text, undefined, next, signal);
        return { items: found.found, next: found.next };
      },
      draw: (one) => h("span", { class: "found" }, objectLink(route.at, one.kind, one.name), badge(one.kind)),
    })));
}
