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
    h("p", { class: "quiet lead" }, "Open and saved transactions that you may use. Their changes are visible once they are committed."),
    card("Saved transactions", grid("Saved transactions", ["Id", "Message", "Author", "Base version", "Began", "Expires", "Isolation"], found.saved.map((one) => [
      h("code", {}, shown(one.id)), shown(one.message), shown(one.author || one.owner), base(one), when(one["began-at-millis"]),
      when(one["expires-at-millis"]), badge(one.isolation),
    ]), "No saved transaction.")),
    card("Open in this server", grid("Open transactions", ["Id", "Owner", "Base version", "Isolation"], found.open.map((one) => [
      h("code", {}, shown(one.id)), shown(one.owner), base(one), badge(one.isolation),
    ]), "No open transaction.")));
}
