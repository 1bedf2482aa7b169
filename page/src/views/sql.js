// A read-only query over one version: an editor, the rows, and a chart of them.

import { copied } from "../datagrid.js";
import { h, icon, replace, shown } from "../dom.js";
import { card, heading, note, waiting } from "../parts.js";
import { link, versionState } from "../routes.js";
import { Completion } from "../sql/completion.js";
import { forget, keep, queries } from "../sql/history.js";
import { when } from "../words.js";
import { rowsOf } from "./table.js";

/** Maximum length of a query in a link. */
const MAX_LINKED = 6000;
/** The last query, while the page is open. */
let last = "";

export async function sql({ source, lakehouse, names, route, signal }) {
  if (!lakehouse.may.sql) throw Object.assign(new Error("This lakehouse runs no queries for you here."), { code: 403 });
  let text = route.options.get("q") ?? last, running = null;
  const place = h("div", { "aria-live": "polite" });
  const start = h("button", { type: "button", class: "main", onclick: () => run() }, icon("play"), "Run");
  const stop = h("button", { type: "button", hidden: true, onclick: () => running?.abort() }, "Cancel");
  const share = h("button", { type: "button", title: "Copy a link to this query and version", onclick: () => copied(linkOf(text), share) }, icon("link"), h("span", {}, "Copy link"));
  const host = h("div", { class: "editor", id: "query" });

  async function run() {
    if (!text.trim()) return;
    last = text;
    keep(text);
    running?.abort();
    const mine = running = new AbortController();
    signal.addEventListener("abort", () => mine.abort());
    stop.hidden = false;
    const began = performance.now();
    const seconds = () => `${((performance.now() - began) / 1000).toFixed(1)} s`;
    const clock = waiting("Running…");
    replace(place, clock);
    const ticking = setInterval(() => { clock.textContent = `Running… ${seconds()}`; }, 200);
    try {
      const found = await source.sql(route.at, text, mine.signal);
      if (mine === running) replace(place, result(found, seconds()));
    } catch (error) {
      if (mine === running) replace(place, error.name === "AbortError" ? note("", `Cancelled after ${seconds()}.`) : note("bad", shown(error.message)));
    } finally {
      clearInterval(ticking);
      if (mine === running) stop.hidden = true;
    }
  }
  function linkOf(query) {
    const at = route.at === "latest" ? versionState(lakehouse.version) : route.at;
    return new URL(link(at, "sql", [], { q: query.slice(0, MAX_LINKED) }), location.href).href;
  }

  const { createEditor } = await import("../sql/editor.js");
  const completion = new Completion(source, names, route.at);
  const editor = createEditor({
    host, text, label: "Query", hint: "SELECT * FROM namespace.table LIMIT 100", run,
    complete: (path, query) => completion.complete(path, query),
    changed: (query) => { text = query; share.disabled = query.length > MAX_LINKED; },
  });
  return h("div", {}, heading("SQL"),
    h("section", { class: "card query", "aria-label": "Query" }, host,
      h("div", { class: "tools" }, start, stop, h("span", { class: "quiet hint" }, "Ctrl + Enter"), h("span", { class: "gap" }),
        h("button", { type: "button", onclick: () => pastQueries((query) => { editor.replace(query); editor.focus(); }) }, icon("clock"), "History"), share),
      h("p", { class: "quiet small" }, "One statement that reads, in DuckDB’s SQL. Tables are namespace.table. ", lakehouse["sql-note"] ?? "")),
    place);
}

/** Rows and chart of an answer. */
function result(found, time) {
  const body = h("div", {});
  const rows = () => rowsOf(found, "Result", "result");
  const buttons = [["table", "Table", rows], ["chart", "Chart", async () => (await import("../sql/chart.js")).chart(found)]].map(([sign, text, make]) => {
    const button = h("button", { type: "button", "aria-pressed": "false", onclick: async () => {
      for (const one of buttons) one.setAttribute("aria-pressed", String(one === button));
      replace(body, await make());
    } }, icon(sign), text);
    return button;
  });
  buttons[0].click();
  return card(null, h("div", { class: "result-head" }, h("p", { class: "quiet" }, `Took ${time}`),
    found.rows.length ? h("div", { class: "switch", role: "group", "aria-label": "Show as" }, buttons) : null), body);
}

function pastQueries(choose) {
  const list = h("ul", { class: "past-queries" });
  const dialog = h("dialog", { class: "chooser", "aria-labelledby": "past-title", onclose: () => dialog.remove() },
    h("div", { class: "heading" }, h("h2", { id: "past-title" }, icon("clock"), "History"),
      h("form", { method: "dialog" }, h("button", { class: "plain", "aria-label": "Close" }, icon("close")))),
    h("p", { class: "quiet" }, "Queries that were run in this browser. Signing out deletes them."), list,
    h("button", { type: "button", onclick: () => { forget(); draw(); } }, "Clear history"));
  const draw = () => {
    const found = queries();
    replace(list, found.length ? found.map((one) => h("li", {}, h("button", { type: "button", onclick: () => { dialog.close(); choose(one.query); } },
      h("code", {}, shown(one.query.length > 300 ? `${one.query.slice(0, 300)}…` : one.query)), h("span", { class: "quiet" }, when(one.at))))) : h("li", { class: "quiet" }, "No query yet."));
  };
  draw();
  document.body.append(dialog);
  dialog.showModal();
}
