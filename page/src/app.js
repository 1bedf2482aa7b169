// Frame of the page, and the view of each address.

import { h, icon, mark, replace, shown } from "./dom.js";
import { note, waiting } from "./parts.js";
import { parse } from "./routes.js";
import { ServerSource } from "./server.js";
import { FilesSource } from "./files/source.js";
import { Names } from "./names.js";
import { Sidebar } from "./frame/sidebar.js";
import { forget } from "./sql/history.js";
import { signIn } from "./frame/sign_in.js";
import { stateText, TimeTravel } from "./frame/time_travel.js";
import { title } from "./words.js";
import { log } from "./views/log.js";
import { namespace } from "./views/namespace.js";
import { overview } from "./views/overview.js";
import { search } from "./views/search.js";
import { table } from "./views/table.js";
import { view } from "./views/view.js";

/** Views. Those that readers seldom open first are loaded on demand. */
const VIEWS = {
  overview, namespace, table, view, search, log,
  sql: async (shown) => (await import("./views/sql.js")).sql(shown),
  version: async (shown) => (await import("./views/version.js")).version(shown),
  compare: async (shown) => (await import("./views/compare.js")).compare(shown),
  transactions: async (shown) => (await import("./views/transactions.js")).transactions(shown),
  tree: async (shown) => (await import("./views/tree.js")).tree(shown),
  maintenance: async (shown) => (await import("./views/maintenance.js")).maintenance(shown),
};
/** Set in the page of files, which has no server. */
const rootOfFiles = document.querySelector('meta[name="trinitylake-root"]')?.content;
const hasSqlOfFiles = document.querySelector('meta[name="trinitylake-sql"]') !== null;
const source = rootOfFiles ? new FilesSource(new URL(rootOfFiles, document.baseURI), hasSqlOfFiles) : new ServerSource();
let lakehouse = null;
let shownNow = new AbortController();
let isFirst = true;

const names = new Names(source);
const sidebar = new Sidebar(source, names);
const main = h("main", { id: "main", tabindex: "-1" });
const brand = h("a", { class: "brand", href: "#/" });
const timeTravel = new TimeTravel(source);
const menu = h("button", { type: "button", class: "plain menu", "aria-controls": "sidebar", "aria-expanded": "false", onclick: () => openMenu(!document.body.classList.contains("menu-open")) },
  icon("menu"), h("span", { class: "unseen" }, "Menu"));

function frame() {
  const theme = h("button", { type: "button", class: "plain", title: "Light or dark", onclick: turnTheme },
    icon("theme"), h("span", { class: "unseen" }, "Light or dark"));
  document.body.append(
    h("a", { class: "skip", href: "#main", onclick: (event) => { event.preventDefault(); main.focus(); } }, "Skip to the content"),
    h("header", { class: "top" }, menu, brand, timeTravel.button, theme),
    h("div", { class: "body" }, sidebar.element, h("div", { class: "page" }, timeTravel.banner, main)),
  );
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, dialog, .editor");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      openMenu(true);
      sidebar.field.focus();
    }
    if (event.key === "Escape") openMenu(false);
  });
}

/** On a phone a button opens the sidebar. */
function openMenu(isOpen) {
  document.body.classList.toggle("menu-open", isOpen);
  menu.setAttribute("aria-expanded", String(isOpen));
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
  if (lakehouse) sidebar.draw(route, lakehouse, who());
  else sidebar.clear();
  menu.hidden = !lakehouse;
  timeTravel.draw(route, lakehouse);
}

function who() {
  if (rootOfFiles) return "Read from files, without a server";
  if (lakehouse.principal === "anonymous") return "This server asks for no token";
  return [h("span", {}, "Signed in as ", shown(lakehouse.principal)),
    source.token ? h("button", { type: "button", class: "link", onclick: () => { source.use(""); forget(); restart(); } }, "Sign out") : null];
}

async function show() {
  shownNow.abort();
  shownNow = new AbortController();
  const { signal } = shownNow;
  const route = parse(location.hash);
  const makes = Object.hasOwn(VIEWS, route.page) ? VIEWS[route.page] : null;
  openMenu(false);
  try {
    lakehouse = await source.lakehouse(signal);
    drawFrame(route);
    if (!makes) throw Object.assign(new Error("This page has no such part."), { code: 404 });
    if (rootOfFiles && lakehouse.may[route.page] === false) {
      throw Object.assign(new Error("This page reads files without a server. Run trinitylake serve to see this part."), { code: 501 });
    }
    main.setAttribute("aria-busy", "true");
    if (isFirst) replace(main, waiting());
    const found = await makes({ source, lakehouse, route, signal, names, field: sidebar.field });
    if (signal.aborted) return;
    draw(found);
    title(...titleOf(route), lakehouse.name || "lakehouse");
  } catch (error) {
    if (signal.aborted || error.name === "AbortError") return;
    drawFrame(route);
    if (error.code === 401) return askForToken(error);
    if (error.code === undefined) console.error(error);
    draw(problem(error));
    title("Not shown");
  }
  const first = main.querySelector("h1");
  // After a link the focus moves to the heading, for screen readers; not when the page is opened.
  if (first && !isFirst && !main.contains(document.activeElement) && document.activeElement !== sidebar.field) {
    first.focus({ preventScroll: true });
  }
  isFirst = false;
  if (!signal.aborted) scrollTo(0, 0);
}

function draw(content) {
  replace(main, content);
  main.removeAttribute("aria-busy");
}

function titleOf(route) {
  const what = route.parts.length ? route.parts.join(".") : route.page[0].toUpperCase() + route.page.slice(1);
  return route.at === "latest" ? [what] : [what, stateText(route.at)];
}

function problem(error) {
  const heads = { 403: "No access", 404: "Not found", 410: "Expired", 413: "Too large to show", 429: "Too many requests", 501: "Needs a server", 0: "No answer" };
  return h("div", { class: "problem" }, h("h1", { tabindex: "-1" }, heads[error.code] ?? "Something went wrong"),
    note("bad", shown(error.message)),
    h("p", {}, h("a", { href: "#/" }, "Go to the overview"), " · ", h("button", { type: "button", class: "link", onclick: restart }, "Try again")));
}

function askForToken(error) {
  lakehouse = null;
  drawFrame(parse(location.hash));
  const { form, token } = signIn((given) => { source.use(given); restart(); }, source.token ? error : null);
  draw(form);
  title("Sign in");
  token.focus();
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
