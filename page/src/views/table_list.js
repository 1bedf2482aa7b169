// Tables with their rows, sizes and last changes.

import { h, plain, replace } from "../dom.js";
import { note, objectLink, waiting } from "../parts.js";
import { number, size, when } from "../words.js";

/** The number of tables whose totals a server reads at once. */
export const MAX_TOTALS = 100;
const COLUMNS = [["Table", (one) => one.name.join(".")], ["Rows", (one) => one.totals?.rows ?? null], ["Size", (one) => one.totals?.["size-bytes"] ?? null],
  ["Last change", (one) => one.totals?.["last-updated-millis"] ?? null]];

/** `names` are at most `MAX_TOTALS` tables. `whole` shows full names; `then(totals)` is called with the totals that were read. */
export function tableList({ source, at, names, label, signal, whole = true, then = () => {} }) {
  const tables = names.map((name) => ({ name, totals: null }));
  const order = { column: 0, sign: 1 };
  const body = h("tbody", { role: "rowgroup" });
  const draw = () => {
    const [, value] = COLUMNS[order.column];
    const sorted = [...tables].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
      return order.sign * (a < b ? -1 : a > b ? 1 : 0);
    });
    replace(body, sorted.map(({ name, totals }) => h("tr", { role: "row" },
      h("td", { role: "cell", "data-label": "Table" }, objectLink(at, "table", name, whole)),
      [number(totals?.rows), size(totals?.["size-bytes"]), when(totals?.["last-updated-millis"])].map((text, place) =>
        h("td", { role: "cell", class: place < 2 ? "number" : null, "data-label": COLUMNS[place + 1][0] }, text)))));
  };
  const heads = COLUMNS.map(([text], column) => {
    const head = h("th", { scope: "col", role: "columnheader", class: column === 1 || column === 2 ? "number" : null },
      h("button", { type: "button", class: "link", onclick: () => {
        Object.assign(order, { column, sign: order.column === column ? -order.sign : column ? -1 : 1 });
        for (const one of heads) one.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", order.sign > 0 ? "ascending" : "descending");
        draw();
      } }, text));
    return head;
  });
  draw();
  const state = h("div", { role: "status" }, waiting("Reading rows and sizes…"));
  source.totals(at, names, signal).then((found) => {
    found.tables.forEach((totals, place) => { tables[place].totals = totals; });
    draw();
    replace(state);
    then(found.tables);
  }, (error) => signal.aborted || replace(state, note("bad", error.message)));
  return h("div", {}, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": plain(label) },
    h("table", { role: "table", class: "cards sortable" }, h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)), body)), state);
}
