// Search for names, by the server.

import { h, shown } from "../dom.js";
import { badge, card, heading, longList, objectLink } from "../parts.js";

export async function search({ source, route, signal, field }) {
  const text = (route.options.get("text") ?? "").trim();
  if (document.activeElement !== field) field.value = text;
  if (!text) return h("div", {}, heading("Search"), h("p", { class: "quiet" }, "Enter a part of a name in the field of the sidebar."));
  return h("div", {},
    heading(h("span", {}, "Names that contain “", shown(text), "”")),
    card(null, longList({
      label: "Matching names", empty: "No name matches.", signal,
      load: async (next) => {
        const found = await source.search(route.at, text, undefined, next, signal);
        return { items: found.found, next: found.next };
      },
      draw: (one) => h("span", { class: "found" }, objectLink(route.at, one.kind, one.name), badge(one.kind)),
    })));
}
