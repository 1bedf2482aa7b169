// One version: its transactions, and its difference to another version.

import { append, h, lines, replace, shown } from "../dom.js";
import { badge, card, change, facts, heading, later, note, properties } from "../parts.js";
import { link, versionState } from "../routes.js";
import { counted, number, when } from "../words.js";

export async function version({ source, lakehouse, route, signal }) {
  const text = route.parts[0] ?? "";
  if (!/^\d{1,15}$/.test(text)) throw Object.assign(new Error("A version is a number."), { code: 404 });
  const chosen = Number(text);
  const from = Number(route.options.get("from") ?? Math.max(chosen - 1, 0));
  if (!Number.isSafeInteger(from) || from < 0) throw Object.assign(new Error("A version is a number."), { code: 404 });
  const found = await source.log(chosen + 1, "", signal);
  const entry = found.entries.find((one) => one.version === chosen);
  if (!entry && chosen > lakehouse.version) throw Object.assign(new Error(`There is no version ${chosen}.`), { code: 404 });
  if (!entry && chosen < lakehouse["oldest-version"]) throw Object.assign(new Error(`Version ${chosen} has expired.`), { code: 404 });
  return h("div", {},
    h("nav", { class: "crumbs", "aria-label": "Above" }, h("ol", {}, h("li", {}, h("a", { href: link("latest", "log", [], { before: chosen + 1 }) }, "Log")))),
    heading(`Version ${number(chosen)}`,
      h("a", { class: "button", href: link(versionState(chosen), "overview") }, "Look around in it"),
      chosen > lakehouse["oldest-version"] ? h("a", { class: "button", href: link("latest", "version", [String(chosen - 1)]) }, "Before") : null,
      chosen < lakehouse.version ? h("a", { class: "button", href: link("latest", "version", [String(chosen + 1)]) }, "After") : null),
    entry ? about(entry) : note("", "Nothing of what this version changed is yours to see."),
    (entry?.transactions ?? []).map((one) => transaction(one, entry)),
    chosen > 0 ? differences({ source, chosen, from, lakehouse, signal }) : null);
}

function about(entry) {
  return facts([
    ["Made", when(entry["created-at-millis"])], ["Transactions", number(entry.transactions.length)],
    entry["rollback-to"] !== null ? ["Went back to", h("a", { href: link("latest", "version", [String(entry["rollback-to"])]) }, number(entry["rollback-to"]))] : null,
    entry.tags.length ? ["Tags", entry.tags.map((name) => badge(shown(name), "good"))] : null,
    entry.problem ? ["Problem", shown(entry.problem)] : null,
  ]);
}

function transaction(one, entry) {
  if (!one["is-whole"]) {
    return card("Transaction", note("", "It changed more than is yours to see, so its words are not shown."),
      h("ul", { class: "changes" }, (one.changes ?? []).map((each) => change(versionState(entry.version), each))));
  }
  return card(one.message ? h("span", { class: "message" }, lines(one.message)) : "Transaction",
    properties([
      ...(one.summary ? [["summary", one.summary]] : []), ["author", one.author || "–"], ["id", one.id], ["isolation", one.isolation], ["began at version", number(one["began-at-version"])],
      ...Object.entries(one.properties ?? {}),
    ]),
    one["n-changes"] > (one.changes ?? []).length ? h("p", { class: "quiet" }, `It changed ${counted(one["n-changes"], "object")}.`) : null);
}

function differences({ source, chosen, from, lakehouse, signal }) {
  const field = h("input", { type: "number", id: "from", value: from, min: lakehouse["oldest-version"], max: lakehouse.version, step: 1 });
  const form = h("form", { class: "inline", onsubmit: (event) => {
    event.preventDefault();
    if (field.value) location.hash = link("latest", "version", [String(chosen)], { from: field.value });
  } }, h("label", { for: "from" }, "Compared with version"), field, h("button", { type: "submit" }, "Compare"));
  const list = h("ul", { class: "changes" });
  const foot = h("div", { class: "more" });
  const draw = (found) => {
    append(list, found.changes.map((one) => change(versionState(chosen), one)));
    replace(foot, found.next !== null
      ? h("button", { type: "button", onclick: () => source.diff(from, chosen, found.next, signal).then(draw, (error) => replace(foot, note("bad", error.message))) }, "More differences")
      : h("p", { class: "quiet" }, list.children.length ? counted(list.children.length, "difference") : "No object that you may see differs."));
    return [list, foot];
  };
  return card("What differs", form, later(signal, () => source.diff(from, chosen, 0, signal), draw, "Comparing…"));
}
