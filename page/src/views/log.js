// The log: versions as a graph, newest first, with undone versions on a separate line.

import { h, icon, replace, shown } from "../dom.js";
import { badge, heading, note } from "../parts.js";
import { link } from "../routes.js";
import { counted, number, when } from "../words.js";

const FILTERS = [["text", "Search"], ["author", "Author"], ["object", "Table or namespace"]];

export async function log({ source, route, signal }) {
  const filters = Object.fromEntries(FILTERS.map(([key]) => [key, route.options.get(key) ?? ""]));
  const isFiltered = Object.values(filters).some(Boolean);
  const before = Number(route.options.get("before")) || undefined;
  const list = h("ol", { class: "log" });
  const foot = h("div", { class: "more" });
  const selection = new Selection(list);
  const walk = { next: undefined };
  async function more(from) {
    replace(foot, h("p", { class: "waiting", role: "status" }, "Reading…"));
    let found;
    try {
      found = await source.log(from, filters, signal);
    } catch (error) {
      if (error.name !== "AbortError") replace(foot, note("bad", error.message));
      return;
    }
    const entries = found.entries.map((one) => ({ ...one, ...place(one, walk) }));
    for (const [at, one] of entries.entries()) list.append(line(one, entries[at - 1], !isFiltered, selection, filters));
    const oldest = found["oldest-version"];
    replace(foot,
      list.children.length ? null : h("p", { class: "quiet" }, isFiltered ? "No version matches so far." : "There is no version."),
      found.next !== null
        ? h("button", { type: "button", onclick: () => more(found.next) }, isFiltered ? `Search before version ${number(found.next)}` : "Older versions")
        : h("p", { class: "quiet" }, oldest > 0 ? `Versions before ${number(oldest)} have expired.` : "This is the first version."));
  }
  await more(before);
  return h("div", {}, heading("Log"), filterForm(filters, isFiltered), selection.element, list, foot);
}

function filterForm(filters, isFiltered) {
  const fields = FILTERS.map(([key, label]) => [key, label, h("input", {
    type: "search", id: `log-${key}`, value: filters[key], maxlength: 200, autocomplete: "off", spellcheck: "false", placeholder: { text: "message, id, name", author: "name", object: "shop.orders" }[key],
  })]);
  return h("form", { class: "filters", role: "search", "aria-label": "Filter the log", onsubmit: (event) => {
    event.preventDefault();
    location.hash = link("latest", "log", [], Object.fromEntries(fields.map(([key, , field]) => [key, field.value.trim()])));
  } },
  fields.map(([, label, field]) => h("div", {}, h("label", { for: field.id }, label), field)),
  h("button", { type: "submit" }, "Filter"), isFiltered ? h("a", { href: link("latest", "log") }, "Show all") : null);
}

/** The selection of two versions of the log for a comparison. */
class Selection {
  constructor(list) {
    this.list = list;
    this.versions = [];
    this.element = h("div", { class: "selection", role: "status" });
    this.#draw();
  }

  box(version) {
    return h("input", { type: "checkbox", value: version, "aria-label": `Select version ${version} to compare`, title: "Select two versions to compare", onchange: (event) => {
      this.versions = this.versions.filter((one) => one !== version);
      if (event.target.checked) this.versions.push(version);
      if (this.versions.length > 2) this.versions.shift();
      for (const one of this.list.querySelectorAll("input[type=checkbox]")) one.checked = this.versions.includes(Number(one.value));
      this.#draw();
    } });
  }

  #draw() {
    const [from, to] = [...this.versions].sort((one, other) => one - other);
    replace(this.element, to === undefined
      ? h("span", { class: "quiet" }, from === undefined ? "Select two versions to compare them." : `Version ${number(from)} is selected; select another one.`)
      : h("a", { class: "button main", href: link("latest", "compare", [String(from), String(to)]) }, icon("compare"), `Compare version ${number(from)} with ${number(to)}`));
  }
}

/** Whether a version is an ancestor of the latest one, or was undone by a rollback. */
function place(one, walk) {
  const first = walk.next === undefined;
  const undone = !first && one.version > walk.next;
  if (!undone) walk.next = one["rollback-to"] ?? one.version - 1;
  return { undone };
}

function line(one, above, draws, selection, filters) {
  const branches = draws && !one.undone && above?.undone;
  const lanes = h("span", { class: `lanes${one.undone ? " undone" : ""}${branches ? " branches" : ""}${draws ? "" : " bare"}`, "aria-hidden": "true" },
    h("i", { class: "trunk" }), one.undone && draws ? h("i", { class: above?.undone ? "twig" : "twig ends" }) : null, branches ? h("i", { class: "bend" }) : null, h("b", {}));
  const authors = [...new Set(one.transactions.map((each) => each.author || each.principal).filter(Boolean))];
  return h("li", { class: "entry" }, lanes, h("div", { class: "what" },
    h("div", { class: "line" }, entryLine(one),
      one["rollback-to"] !== null ? badge(`back to ${number(one["rollback-to"])}`, "warn") : null,
      one.undone ? badge("undone", "warn") : null,
      one.tags.map((name) => badge(shown(name), "good")), one.problem ? badge("damaged", "bad") : null),
    h("div", { class: "quiet" }, authors.map((name) => [h("a", { class: "author", href: link("latest", "log", [], { ...filters, author: name }) }, shown(name)), " · "]), when(one["created-at-millis"]),
      summaries(one).map((each) => [" · ", shown(each)]),
      one.transactions.length > 1 ? ` · ${counted(one.transactions.length, "transaction")}` : "")), selection.box(one.version));
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
