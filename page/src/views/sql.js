// A read-only query over one version.

import { h, replace, shown } from "../dom.js";
import { card, heading, note, waiting } from "../parts.js";
import { counted } from "../words.js";
import { rowsOf } from "./table.js";

/** The last query, while the page is open. */
let last = "";

export async function sql({ source, lakehouse, route, signal }) {
  if (!lakehouse.may.sql) throw Object.assign(new Error("This lakehouse runs no queries for you here."), { code: 403 });
  const field = h("textarea", {
    id: "query", rows: 6, spellcheck: "false", autocomplete: "off", maxlength: 100000, placeholder: "SELECT * FROM namespace.table LIMIT 100",
  });
  field.value = last;
  const place = h("div", { "aria-live": "polite" });
  const button = h("button", { type: "submit", class: "main" }, "Run");
  const stop = h("button", { type: "button", hidden: true, onclick: () => running?.abort() }, "Stop");
  let running = null;
  const run = async () => {
    last = field.value;
    running?.abort();
    const mine = running = new AbortController();
    signal.addEventListener("abort", () => mine.abort());
    stop.hidden = false;
    replace(place, waiting("Running…"));
    try {
      const found = await source.sql(route.at, field.value, mine.signal);
      replace(place, card(counted(found.rows.length, "row"), rowsOf(found)));
    } catch (error) {
      if (mine === running) replace(place, note(error.name === "AbortError" ? "" : "bad", error.name === "AbortError" ? "Stopped." : shown(error.message)));
    } finally {
      if (mine === running) stop.hidden = true;
    }
  };
  const form = h("form", { class: "card query", onsubmit: (event) => {
    event.preventDefault();
    if (field.value.trim()) run();
  } },
  h("label", { for: "query" }, "One statement that reads, in DuckDB’s SQL; tables are namespace.table"), field,
  h("div", { class: "together" }, button, stop, h("span", { class: "quiet hint" }, "Ctrl and Enter run it, too")),
  lakehouse["sql-note"] ? h("p", { class: "quiet" }, lakehouse["sql-note"]) : null);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  return h("div", {}, heading("SQL"), form, place);
}
