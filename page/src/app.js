// Frame of the page, and the view of each address.

import { h, icon, mark, plain, replace, shown } from "./dom.js";
import { note, waiting } from "./parts.js";
import { link, parse } from "./routes.js";
import { ServerSource } from "./server.js";
import { FilesSource } from "./files/source.js";
import { choose } from "./chooser.js";
import { number, title } from "./words.js";
import { log } from "./views/log.js";
import { namespace } from "./views/namespace.js";
import { overview } from "./views/overview.js";
import { search } from "./views/search.js";
import { sql } from "./views/sql.js";
import { table } from "./views/table.js";
import { transactions } from "./views/transactions.js";
import { tree } from "./views/tree.js";
import { maintenance } from "./views/maintenance.js";
import { version } from "./views/version.js";
import { view } from "./views/view.js";

const VIEWS = { sql, overview, namespace, table, view, search, log, version, transactions, tree, maintenance };
const PLACES = [
  ["overview", "Overview", "home"], ["sql", "SQL", "sql"], ["log", "Log", "log"], ["transactions", "Transactions", "open"],
  ["tree", "Tree", "tree"], ["maintenance", "Maintenance", "maintenance"],
];

/** Set in the page of files, which has no server. */
const rootOfFiles = document.querySelector('meta[name="trinitylake-root"]')?.content;
const hasSqlOfFiles = document.querySelector('meta[name="trinitylake-sql"]') !== null;
const source = rootOfFiles ? new FilesSource(new URL(rootOfFiles, document.baseURI), hasSqlOfFiles) : new ServerSource();
let lakehouse = null;
let shownNow = new AbortController();
let isFirst = true;

const main = h("main", { id: "main", tabindex: "-1" });
const places = h("nav", { class: "places", "aria-label": "Lakehouse" });
const brand = h("a", { class: "brand", href: "#/" });
const banner = h("aside", { class: "banner", "aria-label": "Time travel", hidden: true });
const state = h("div", { class: "state" });
const field = h("input", {
  type: "search", id: "search", placeholder: "Search names", autocomplete: "off", spellcheck: "false", maxlength: 200,
  "aria-label": "Search names of namespaces, tables and views", "aria-keyshortcuts": "/",
});

function frame() {
  const find = h("form", { class: "find", role: "search", onsubmit: (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (text) location.hash = link(parse(location.hash).at, "search", [], { text });
  } }, icon("search"), field, h("kbd", { "aria-hidden": "true" }, "/"));
  const theme = h("button", { type: "button", class: "plain", title: "Light or dark", onclick: turnTheme },
    icon("theme"), h("span", { class: "unseen" }, "Light or dark"));
  document.body.append(
    h("a", { class: "skip", href: "#main", onclick: (event) => { event.preventDefault(); main.focus(); } }, "Skip to the content"),
    h("header", { class: "top" }, brand, find, state, theme),
    h("div", { class: "body" }, places, h("div", { class: "page" }, banner, main)),
  );
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, dialog");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      field.focus();
    }
  });
}

function turnTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  setTheme(now === "dark" ? "light" : "dark");
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("trinitylake.theme", theme);
  } catch {
    // It is not stored.
  }
}

function drawFrame(route) {
  replace(brand, mark(),
    h("span", { class: "name" }, lakehouse?.name ? shown(lakehouse.name) : "TrinityLake"));
  const open = PLACES.filter(([page]) => lakehouse?.may[page] !== false);
  replace(places, h("ul", {}, open.map(([page, text, sign]) =>
    h("li", {}, h("a", { href: link(route.at, page), "aria-current": isIn(route.page, page) ? "page" : null },
      icon(sign), h("span", {}, text))))),
    lakehouse ? h("p", { class: "who" }, rootOfFiles ? "Read from its files, without a server" : lakehouse.principal === "anonymous" ? "No token asked for" : ["You are ", shown(lakehouse.principal)],
      source.token ? h("button", { type: "button", class: "link", onclick: () => { source.use(""); restart(); } }, "Forget the token") : null) : null);
  replace(state, lakehouse ? h("button", { type: "button", class: "version", "aria-haspopup": "dialog", onclick: () => choose(source, lakehouse, route) },
    icon("clock"), h("span", {}, route.at === "latest" ? `Latest · ${number(lakehouse.version)}` : stateText(route.at))) : null);
  const latest = link("latest", route.page, route.parts, Object.fromEntries(route.options));
  const isPast = route.at !== "latest" && !["log", "transactions", "maintenance", "version"].includes(route.page);
  banner.hidden = !isPast;
  replace(banner, isPast ? h("p", {}, icon("clock"), `This is ${stateText(route.at).toLowerCase()}, as it was. `, h("a", { href: latest }, "Go to the latest version")) : null);
}

function isIn(page, place) {
  const inside = { overview: ["namespace", "table", "view", "search"], log: ["version"] };
  return page === place || (inside[place] ?? []).includes(page);
}

function stateText(at) {
  if (at.startsWith("version~")) return `Version ${at.slice(8)}`;
  return `Snapshot ${plain(at.slice(9))}`;
}

async function show() {
  shownNow.abort();
  shownNow = new AbortController();
  const { signal } = shownNow;
  const route = parse(location.hash);
  const makes = Object.hasOwn(VIEWS, route.page) ? VIEWS[route.page] : null;
  if (route.page !== "search") field.value = "";
  try {
    lakehouse = await source.lakehouse(signal);
    drawFrame(route);
    if (!makes) throw Object.assign(new Error("This page has no such part."), { code: 404 });
    replace(main, waiting());
    const found = await makes({ source, lakehouse, route, signal, field });
    if (signal.aborted) return;
    replace(main, found);
    title(...titleOf(route), lakehouse.name || "lakehouse");
  } catch (error) {
    if (signal.aborted || error.name === "AbortError") return;
    drawFrame(route);
    if (error.code === 401) return askForToken(error);
    if (error.code === undefined) console.error(error);
    replace(main, problem(error));
    title("Not shown");
  }
  const first = main.querySelector("h1");
  // After a link the focus moves to the heading, for screen readers; not when the page is opened.
  if (first && !isFirst && !main.contains(document.activeElement) && document.activeElement !== field) {
    first.focus({ preventScroll: true });
  }
  isFirst = false;
  if (!signal.aborted) scrollTo(0, 0);
}

function titleOf(route) {
  const what = route.parts.length ? route.parts.join(".") : route.page[0].toUpperCase() + route.page.slice(1);
  return route.at === "latest" ? [what] : [what, stateText(route.at)];
}

function problem(error) {
  const heads = { 403: "Not yours to see", 404: "Nothing is here", 410: "It is gone", 413: "Too large to show", 429: "One moment", 0: "No answer" };
  return h("div", { class: "problem" }, h("h1", { tabindex: "-1" }, heads[error.code] ?? "This went wrong"),
    note("bad", shown(error.message)),
    h("p", {}, h("a", { href: "#/" }, "Go to the overview"), " · ", h("button", { type: "button", class: "link", onclick: restart }, "Try again")));
}

function askForToken(error) {
  const given = h("input", { type: "password", id: "token", name: "token", autocomplete: "off", required: true, spellcheck: "false" });
  const wrong = source.token !== "";
  replace(places);
  replace(main, h("form", { class: "card token", onsubmit: (event) => {
    event.preventDefault();
    source.use(given.value.trim());
    restart();
  } },
  h("h1", { tabindex: "-1" }, icon("key"), "A token, please"),
  h("p", { class: "quiet" }, "This lakehouse is for those who have a token. It is kept for this tab, and sent to this server alone."),
  wrong ? note("bad", shown(error.message)) : null,
  h("label", { for: "token" }, "Token"), given,
  h("button", { type: "submit", class: "main" }, "Open the lakehouse")));
  title("A token, please");
  given.focus();
}

function restart() {
  lakehouse = null;
  show();
}

try {
  const theme = localStorage.getItem("trinitylake.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // The setting of the system applies.
}
frame();
addEventListener("hashchange", show);
show();
