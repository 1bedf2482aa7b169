// One version: its transactions, and the comparison with the previous version.

import { h, lines, shown } from "../dom.js";
import { badge, card, change, facts, heading, note, properties } from "../parts.js";
import { link, versionState } from "../routes.js";
import { counted, moment, number, when } from "../words.js";
import { differences } from "./compare.js";

export async function version({ source, lakehouse, route, signal }) {
  const text = route.parts[0] ?? "";
  if (!/^\d{1,15}$/.test(text)) throw Object.assign(new Error("A version is a number."), { code: 404 });
  const chosen = Number(text);
  const found = await source.log(chosen + 1, { size: 1 }, signal);
  const entry = found.entries.find((one) => one.version === chosen);
  if (!entry && chosen > lakehouse.version) throw Object.assign(new Error(`There is no version ${chosen}.`), { code: 404 });
  if (!entry && chosen < lakehouse["oldest-version"]) throw Object.assign(new Error(`Version ${chosen} has expired.`), { code: 404 });
  return h("div", {},
    h("nav", { class: "crumbs", "aria-label": "Above" }, h("ol", {}, h("li", {}, h("a", { href: link("latest", "log", [], { before: chosen + 1 }) }, "Log")))),
    heading(`Version ${number(chosen)}`,
      h("a", { class: "button", href: link(versionState(chosen), "overview") }, "Open this version"),
      chosen > lakehouse["oldest-version"] ? h("a", { class: "button", href: link("latest", "version", [String(chosen - 1)]) }, "Older") : null,
      chosen < lakehouse.version ? h("a", { class: "button", href: link("latest", "version", [String(chosen + 1)]) }, "Newer") : null),
    entry ? about(entry) : note("", "You may not see any object that this version changed."),
    (entry?.transactions ?? []).map((one) => transaction(one, entry)),
    chosen > lakehouse["oldest-version"] ? differences({ source, lakehouse, from: chosen - 1, to: chosen, signal }) : null);
}

function about(entry) {
  return facts([
    ["Committed", [when(entry["created-at-millis"]), h("span", { class: "quiet exact" }, moment(entry["created-at-millis"]))]], ["Transactions", number(entry.transactions.length)],
    entry["rollback-to"] !== null ? ["Rolled back to", h("a", { href: link("latest", "version", [String(entry["rollback-to"])]) }, number(entry["rollback-to"]))] : null,
    entry.tags.length ? ["Tags", entry.tags.map((name) => badge(shown(name), "good"))] : null,
    entry.problem ? ["Problem", shown(entry.problem)] : null,
  ]);
}

function transaction(one, entry) {
  if (!one["is-whole"]) {
    return card("Transaction", note("", "It also changed objects that you may not see, so its message is not shown."),
      h("ul", { class: "changes" }, (one.changes ?? []).map((each) => change(versionState(entry.version), each))));
  }
  return card(one.message ? h("span", { class: "message" }, lines(one.message)) : "Transaction",
    properties([
      ...(one.summary ? [["summary", one.summary]] : []), ["author", one.author || "–"], ["id", one.id], ["isolation", one.isolation], ["began at version", number(one["began-at-version"])],
      ...Object.entries(one.properties ?? {}),
    ]),
    one["n-changes"] > (one.changes ?? []).length ? h("p", { class: "quiet" }, `It changed ${counted(one["n-changes"], "object")}.`) : null);
}
