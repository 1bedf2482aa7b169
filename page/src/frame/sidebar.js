// Sidebar: links to the views, and the tree of namespaces, tables and views.

import { h, icon, replace, shown } from "../dom.js";
import { link, linkTo } from "../routes.js";
import { number } from "../words.js";

const PLACES = [
  ["overview", "Overview", "home"], ["sql", "SQL", "sql"], ["log", "Log", "log"], ["transactions", "Transactions", "open"],
  ["maintenance", "Maintenance", "maintenance"], ["tree", "Storage", "storage"],
];
const INSIDE = { log: ["version", "compare"] };
/** Number of names that one level shows before "more". */
const SHOWN = 200;
const FILTER_MILLIS = 250;

export class Sidebar {
  constructor(source, names) {
    this.source = source;
    this.names = names;
    this.expanded = new Set();
    this.places = h("nav", { class: "places", "aria-label": "Lakehouse" });
    this.tree = h("nav", { class: "objects", "aria-label": "Namespaces and tables" });
    this.field = h("input", {
      type: "search", id: "search", placeholder: "Filter by name", autocomplete: "off", spellcheck: "false", maxlength: 200,
      "aria-label": "Filter namespaces, tables and views by name", "aria-keyshortcuts": "/", oninput: () => this.#filterSoon(),
    });
    this.find = h("form", { class: "find", role: "search", onsubmit: (event) => {
      event.preventDefault();
      const text = this.field.value.trim();
      if (text) location.hash = link(this.names.at, "search", [], { text });
    } }, icon("search"), this.field, h("kbd", { "aria-hidden": "true" }, "/"));
    this.who = h("div", { class: "who" });
    this.element = h("aside", { class: "sidebar", id: "sidebar", "aria-label": "Sidebar" }, this.places, this.find, this.tree, this.who);
  }

  clear() {
    replace(this.places);
    replace(this.tree);
    replace(this.who);
    this.element.hidden = true;
    this.names.state = "";
  }

  /** Show a route of a lakehouse. Names are read again only if its version differs from the shown one. */
  draw(route, lakehouse, who) {
    this.element.hidden = false;
    const open = PLACES.filter(([page]) => lakehouse.may[page] !== false);
    replace(this.places, h("ul", {}, open.map(([page, text, sign]) => h("li", {},
      h("a", { href: link(route.at, page), "aria-current": route.page === page || INSIDE[page]?.includes(route.page) ? "page" : null }, icon(sign), h("span", {}, text))))));
    replace(this.who, who);
    const isObject = ["namespace", "table", "view"].includes(route.page);
    this.chosen = isObject ? `${route.page} ${JSON.stringify(route.parts)}` : "";
    if (isObject) {
      const last = route.page === "namespace" ? route.parts.length : route.parts.length - 1;
      for (let count = 1; count <= last; count += 1) this.expanded.add(JSON.stringify(route.parts.slice(0, count)));
    }
    if (this.names.select(route.at, lakehouse.version) || !this.tree.firstChild) this.#reload();
    else this.#mark();
  }

  #reload() {
    if (this.field.value.trim()) return this.#filter();
    const list = this.#level([]), { state } = this.names;
    // The old names stay until the new ones arrive. The answer is dropped if another version is shown by then.
    list.ready.then(() => {
      if (state !== this.names.state) return;
      replace(this.tree, list);
      this.#mark();
    });
  }

  /** Expand the namespaces above the object that is shown, and mark it. */
  #mark() {
    for (const one of this.tree.querySelectorAll("a[data-object]")) {
      if (one.dataset.object === this.chosen) one.setAttribute("aria-current", "page");
      else one.removeAttribute("aria-current");
    }
    for (const one of this.tree.querySelectorAll("button[aria-expanded=false]")) {
      if (this.expanded.has(one.dataset.namespace)) one.expand();
    }
    this.tree.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }

  /** The content of a namespace, or the top level. */
  #level(namespace) {
    const list = h("ul", { class: namespace.length ? null : "top-level" });
    const { names } = this;
    list.ready = Promise.all([
      names.namespaces(namespace),
      namespace.length ? names.objects("table", namespace) : { items: [] },
      namespace.length ? names.objects("view", namespace) : { items: [] },
    ]).then(([namespaces, tables, views]) => {
      const all = [...namespaces.items.map((name) => ["namespace", name]), ...tables.items.map((name) => ["table", name]), ...views.items.map((name) => ["view", name])];
      const isMore = Boolean(namespaces.next ?? tables.next ?? views.next) || all.length > SHOWN;
      replace(list, all.slice(0, SHOWN).map(([kind, name]) => this.#item(kind, name)),
        isMore ? h("li", { class: "quiet" }, h("a", { href: namespace.length ? link(names.at, "namespace", namespace) : link(names.at, "overview") },
          all.length > SHOWN ? `${number(all.length - SHOWN)}${namespaces.next ?? tables.next ?? views.next ? "+" : ""} more…` : "More…")) : null,
        all.length ? null : h("li", { class: "quiet" }, namespace.length ? "Empty" : "No namespace yet"));
    }, (error) => replace(list, h("li", { class: "quiet" }, shown(error.message))));
    return list;
  }

  #item(kind, name, whole = false) {
    const target = h("a", { href: linkTo(this.names.at, kind, name), "data-object": `${kind} ${JSON.stringify(name)}`, title: name.join(".") },
      icon(kind), h("span", {}, shown(whole ? name.join(".") : name.at(-1))));
    if (kind !== "namespace" || whole) return h("li", {}, h("div", { class: "line" }, h("i", { class: "indent" }), target));
    const key = JSON.stringify(name);
    const item = h("li", {});
    const toggle = h("button", { type: "button", class: "toggle", "aria-expanded": "false", "aria-label": `Content of ${name.at(-1)}`, "data-namespace": key, onclick: () => {
      if (toggle.getAttribute("aria-expanded") === "false") return toggle.expand();
      this.expanded.delete(key);
      toggle.setAttribute("aria-expanded", "false");
      item.lastChild.remove();
    } }, icon("chevron"));
    toggle.expand = () => {
      this.expanded.add(key);
      toggle.setAttribute("aria-expanded", "true");
      const level = this.#level(name);
      item.append(level);
      level.ready.then(() => this.#mark());
    };
    item.append(h("div", { class: "line" }, toggle, target));
    return item;
  }

  #filterSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#filter(), FILTER_MILLIS);
  }

  async #filter() {
    const text = this.field.value.trim();
    if (!text) return this.#reload();
    this.filtering?.abort();
    const { signal } = this.filtering = new AbortController();
    try {
      const { found, next } = await this.source.search(this.names.at, text, undefined, undefined, signal);
      replace(this.tree, h("ul", { class: "top-level" }, found.map((one) => this.#item(one.kind, one.name, true)),
        next ? h("li", { class: "quiet" }, h("a", { href: link(this.names.at, "search", [], { text }) }, "More matches…")) : null,
        found.length || next ? null : h("li", { class: "quiet" }, "No name matches")));
      this.#mark();
    } catch (error) {
      if (error.name !== "AbortError") replace(this.tree, h("p", { class: "quiet" }, shown(error.message)));
    }
  }
}
