// The log: versions as a graph, newest first, with undone versions on a separate line.

import { h, replace, shown } from "../dom.js";
import { badge, heading, note } from "../parts.js";
import { link } from "../routes.js";
import { counted, number, when } from "../words.js";

export async function log({ source, route, signal }) {
  const text = route.options.get("text") ?? "";
  const before = Number(route.options.get("before")) || undefined;
  const list = h("ol", { class: "log" });
  const foot = h("div", { class: "more" });
  const walk = { next: undefined };
  async function more(from) {
    replace(foot, h("p", { class: "waiting", role: "status" }, "Reading…"));
    let found;
    try {
      found = await source.log(from, text, signal);
    } catch (error) {
      if (error.name !== "AbortError") replace(foot, note("bad", error.message));
      return;
    }
    const entries = found.entries.map((one) => ({ ...one, ...place(one, walk) }));
    for (const [at, one] of entries.entries()) list.append(line(one, entries[at - 1], !text));
    const oldest = found["oldest-version"];
    replace(foot,
      list.children.length ? null : h("p", { class: "quiet" }, text ? "No version of those that were looked at fits." : "There is nothing to show."),
      found.next !== null
        ? h("button", { type: "button", onclick: () => more(found.next) }, text ? `Look further back than version ${number(found.next)}` : "Older versions")
        : h("p", { class: "quiet" }, oldest > 0 ? `Versions before ${number(oldest)} have expired.` : "This is where it began."));
  }
  await more(before);
  return h("div", {}, heading("Log"), searchForm(text), list, foot);
}

function searchForm(text) {
  const field = h("input", { type: "search", id: "log-search", value: text, maxlength: 200, autocomplete: "off", spellcheck: "false" });
  return h("form", { class: "filter", onsubmit: (event) => {
    event.preventDefault();
    location.hash = link("latest", "log", [], { text: field.value.trim() });
  } }, h("label", { for: "log-search" }, "Messages, authors, ids, names of objects that hold"), h("div", { class: "together" }, field, h("button", { type: "submit" }, "Search")));
}

/** Whether a version is an ancestor of the latest one, or was undone by a rollback. */
function place(one, walk) {
  const first = walk.next === undefined;
  const undone = !first && one.version > walk.next;
  if (!undone) walk.next = one["rollback-to"] ?? one.version - 1;
  return { undone };
}

function line(one, above, draws) {
  const branches = draws && !one.undone && above?.undone;
  const lanes = h("span", { class: `lanes${one.undone ? " undone" : ""}${branches ? " branches" : ""}${draws ? "" : " bare"}`, "aria-hidden": "true" },
    h("i", { class: "trunk" }), one.undone && draws ? h("i", { class: above?.undone ? "twig" : "twig ends" }) : null, branches ? h("i", { class: "bend" }) : null, h("b", {}));
  return h("li", { class: "entry" }, lanes, h("div", { class: "what" },
    h("div", { class: "line" }, entryLine(one),
      one["rollback-to"] !== null ? badge(`back to ${number(one["rollback-to"])}`, "warn") : null,
      one.undone ? badge("undone", "warn") : null,
      one.tags.map((name) => badge(shown(name), "good")), one.problem ? badge("damaged", "bad") : null),
    h("div", { class: "quiet" }, who(one), when(one["created-at-millis"]),
      summaries(one).map((each) => [" · ", shown(each)]),
      one.transactions.length > 1 ? ` · ${counted(one.transactions.length, "transaction")}` : "")));
}

/** A version in one line: its number and description. */
export function entryLine(one) {
  return h("a", { class: "entry-link", href: link("latest", "version", [String(one.version)]) },
    h("span", { class: "no" }, number(one.version)), h("span", { class: "message" }, aboutOf(one)));
}

/** The summary of transactions that also have a message. */
function summaries(one) {
  return one.transactions.filter((each) => each.message && each.summary).slice(0, 3).map((each) => (each.summary.length > 160 ? `${each.summary.slice(0, 160)}…` : each.summary));
}

function who(one) {
  const names = [...new Set(one.transactions.map((each) => each.author || each.principal).filter(Boolean))];
  return names.length ? [shown(names.join(", ")), " · "] : "";
}

/** Description of a version: its messages, or else its changes. */
export function aboutOf(one) {
  if (one.problem) return shown(one.problem);
  if (!one.transactions.length) return one.version === 0 ? "The lakehouse was created" : "No transaction";
  const [first] = one.transactions;
  const text = one.transactions.map((each) => each.message || each.summary).filter(Boolean).join(" · ");
  const changes = one.transactions.flatMap((each) => each.changes ?? []);
  if (text) return shown(text.length > 300 ? `${text.slice(0, 300)}…` : text);
  if (changes.length) {
    const named = changes.slice(0, 3).flatMap((each, at) => [at ? ", " : "", { "-": "− ", "=": "" }[each.sign] ?? `${each.sign} `, shown(each.name.join("."))]);
    return [...named, changes.length > 3 ? ` and ${changes.length - 3} more` : ""];
  }
  const words = { register: "Objects were registered", rollback: "Rollback", export: "Exported", repair: "Repaired" };
  return words[first.operation] ?? "No object changed";
}
