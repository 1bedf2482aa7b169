// Transactions that are neither committed nor rolled back.

import { h, shown } from "../dom.js";
import { badge, card, grid, heading } from "../parts.js";
import { link, versionState } from "../routes.js";
import { number, when } from "../words.js";

export async function transactions({ source, signal }) {
  const found = await source.transactions(signal);
  const base = (one) => h("a", { href: link(versionState(one["base-version"]), "overview") }, number(one["base-version"]));
  return h("div", {},
    heading("Transactions"),
    h("p", { class: "quiet lead" }, "Those that are open or saved, as far as they are yours to work in. Nothing of them can be seen in any version before they are committed."),
    card("Saved, and waiting to be resumed", grid("Saved transactions", ["Id", "Message", "Author", "Began on", "Began", "Ends", "Isolation"], found.saved.map((one) => [
      h("code", {}, shown(one.id)), shown(one.message), shown(one.author || one.owner), base(one), when(one["began-at-millis"]),
      when(one["expires-at-millis"]), badge(one.isolation),
    ]), "No transaction is saved.")),
    card("Open in this server", grid("Open transactions", ["Id", "Whose", "Began on", "Isolation"], found.open.map((one) => [
      h("code", {}, shown(one.id)), shown(one.owner), base(one), badge(one.isolation),
    ]), "None is open.")));
}
