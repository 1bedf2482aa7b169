// Data grid for the rows of a preview, a query or a comparison: one line per row, a fixed header, adjustable widths, a
// filter, sorting, copying, and the profile of each column.

import { append, h, icon, plain, replace, shown } from "./dom.js";
import { counted, number } from "./words.js";
import { shortType } from "./types.js";

/** Number of rows that get elements before the reader scrolls. */
const DRAWN = 200;
const MIN_WIDTH = 48, MAX_WIDTH = 1200, STEP = 16;
const CHANGED = { "+": "added", "-": "removed", "~": "changed" };

/**
 * `columns` are `{name, type, nulls, min, max}`, `rows` lists of texts, null for NULL. With `signs` each row has a sign,
 * "+", "-" or "~"; `before` has the old values of changed rows. `name` is the name of a downloaded file.
 */
export function dataGrid({ label, name, columns, rows, signs, before, tools = [] }) {
  const order = { column: -1, descending: false };
  let places = rows.map((_, at) => at), limit = DRAWN;
  const body = h("tbody", { role: "rowgroup" });
  const status = h("span", { class: "quiet", role: "status" });
  const more = h("button", { type: "button", hidden: true, onclick: () => { limit = Infinity; draw(); } }, "");
  const filter = h("input", { type: "search", placeholder: "Filter these rows", "aria-label": `Filter ${plain(label)}`, maxlength: 200, oninput: () => arrange() });

  function arrange() {
    const text = filter.value.trim().toLowerCase();
    places = rows.map((_, at) => at);
    if (text) places = places.filter((at) => rows[at].some((value) => value !== null && value.toLowerCase().includes(text)));
    if (order.column >= 0) places.sort(comparison(rows, order, isNumber(columns[order.column].type)));
    draw();
  }
  function draw() {
    replace(body);
    append(body, places.slice(0, limit).map(line));
    status.textContent = places.length === rows.length ? counted(rows.length, "row") : `${number(places.length)} of ${counted(rows.length, "row")}`;
    more.hidden = places.length <= limit;
    more.textContent = `Show all ${counted(places.length, "row")}`;
  }
  function line(at) {
    const sign = signs?.[at];
    return h("tr", { role: "row", class: sign ? CHANGED[sign] : null },
      h("th", { scope: "row", role: "rowheader", class: "no" }, h("button", { type: "button", class: "link", "aria-label": `Row ${at + 1}`, title: "All values of this row", onclick: () => rowDialog(columns, rows[at], at, before?.[at]) },
        sign ? [h("b", { "aria-hidden": "true" }, sign === "-" ? "−" : sign), h("span", { class: "unseen" }, CHANGED[sign])] : number(at + 1))),
      columns.map((column, place) => {
        const old = before?.[at];
        const isOther = old && old[place] !== rows[at][place];
        return h("td", { role: "cell", class: `${isNumber(column.type) ? "number" : ""}${isOther ? " other" : ""}`, "data-label": plain(column.name) },
          isOther ? [h("del", {}, valueOf(old[place])), " ", h("ins", {}, valueOf(rows[at][place]))] : valueOf(rows[at][place]));
      }));
  }
  function turn(place, button) {
    if (order.column !== place) Object.assign(order, { column: place, descending: false });
    else if (!order.descending) order.descending = true;
    else order.column = -1;
    for (const one of button.closest("tr").children) one.removeAttribute("aria-sort");
    if (order.column >= 0) button.closest("th").setAttribute("aria-sort", order.descending ? "descending" : "ascending");
    arrange();
  }

  const table = h("table", { class: "data", role: "table", "aria-label": plain(label) });
  const widths = columns.map(() => h("col"));
  const heads = columns.map((column, place) => h("th", { scope: "col", role: "columnheader", class: isNumber(column.type) ? "number" : "" },
    h("button", { type: "button", class: "sort", title: `${plain(column.name)}: ${plain(column.type)}`, onclick: (event) => turn(place, event.currentTarget) },
      h("span", { class: "column" }, shown(column.name)), h("span", { class: "type" }, shown(shortType(column.type)))),
    profile(column), handle(table, widths, place, column.name)));
  append(table, [h("colgroup", {}, h("col"), widths), h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, h("td", { role: "cell", class: "no" }), heads)), body]);
  draw();
  const texts = () => places.map((at) => [...(signs ? [signs[at]] : []), ...rows[at]]);
  const names = [...(signs ? ["change"] : []), ...columns.map((one) => one.name)];
  const copy = h("button", { type: "button", onclick: async () => {
    await copied([names, ...texts()].map((row) => row.map((one) => (one ?? "").replaceAll(/[\t\n]/g, " ")).join("\t")).join("\n"), copy);
  } }, icon("copy"), h("span", {}, "Copy"));
  return h("div", { class: "datagrid" },
    h("div", { class: "tools" }, rows.length > 5 ? filter : null, status, h("span", { class: "gap" }), tools, copy,
      h("button", { type: "button", onclick: () => download(`${name}.csv`, csv(names, texts())) }, icon("download"), h("span", {}, "CSV"))),
    rows.length ? h("div", { class: "scroll grid-scroll", tabindex: "0", role: "region", "aria-label": plain(label) }, table) : h("p", { class: "quiet" }, "No rows."),
    more);
}

function comparison(rows, { column, descending }, numeric) {
  const sign = descending ? -1 : 1;
  return (one, other) => {
    const [a, b] = [rows[one][column], rows[other][column]];
    if (a === null || b === null) return a === b ? one - other : a === null ? 1 : -1; // NULL is last
    const difference = numeric ? Number(a) - Number(b) : a < b ? -1 : a > b ? 1 : 0;
    return sign * (Number.isNaN(difference) ? 0 : difference) || one - other;
  };
}

/** Share of NULL, and the bounds of a column. */
function profile({ name, type, nulls, min, max }) {
  if (/^timestamp/i.test(type) && min && min.slice(0, 10) !== max.slice(0, 10)) [min, max] = [min.slice(0, 10), max.slice(0, 10)];
  if ((nulls ?? null) === null && (min ?? null) === null) return null;
  const percent = nulls === 0 ? "no NULL" : nulls < 0.01 ? "< 1 % NULL" : nulls === 1 ? "all NULL" : `${Math.round(100 * nulls)} % NULL`;
  return h("div", { class: "profile", title: "Of the whole table, from the metrics of its files" },
    (nulls ?? null) === null ? null : [nulls === 0 ? null : h("meter", { min: 0, max: 1, value: nulls, "aria-label": `NULL in ${plain(name)}` }), h("span", { class: nulls ? "some" : "" }, percent)],
    (min ?? null) === null ? null : h("span", { class: "bounds" }, min === max ? shown(cut(min)) : [shown(cut(min)), " – ", shown(cut(max))]));
}

function cut(text) {
  if (text === "-0.0") return "0.0"; // Iceberg writes zero as a lower bound like this
  return text.length > 24 ? `${text.slice(0, 23)}…` : text;
}

/** Handle that changes the width of a column, with the pointer or the arrow keys. */
function handle(table, widths, place, name) {
  const set = (width) => {
    const wanted = Math.min(Math.max(width, MIN_WIDTH), MAX_WIDTH);
    if (!table.classList.contains("fixed")) {
      const heads = [...table.tHead.rows[0].cells].map((one) => one.offsetWidth);
      [...table.querySelectorAll("col")].forEach((one, at) => { one.style.width = `${heads[at]}px`; });
      table.classList.add("fixed");
    }
    widths[place].style.width = `${wanted}px`;
    const sum = [...table.querySelectorAll("col")].reduce((total, one) => total + parseFloat(one.style.width), 0);
    table.style.width = `${sum}px`;
    grip.setAttribute("aria-valuenow", Math.round(wanted));
  };
  const now = () => grip.closest("th").offsetWidth;
  const grip = h("span", {
    class: "grip", role: "separator", tabindex: "0", "aria-orientation": "vertical", "aria-label": `Width of ${plain(name)}`, "aria-valuenow": 100, "aria-valuemin": MIN_WIDTH, "aria-valuemax": MAX_WIDTH,
    onpointerdown: (event) => {
      event.preventDefault();
      const [from, width] = [event.clientX, now()];
      const move = (one) => set(width + one.clientX - from);
      grip.setPointerCapture(event.pointerId);
      grip.addEventListener("pointermove", move);
      grip.addEventListener("pointerup", () => grip.removeEventListener("pointermove", move), { once: true });
    },
    onkeydown: (event) => {
      if (event.key === "ArrowLeft") set(now() - STEP);
      else if (event.key === "ArrowRight") set(now() + STEP);
      else return;
      event.preventDefault();
    },
  });
  return grip;
}

function rowDialog(columns, row, at, old) {
  const dialog = h("dialog", { class: "row-dialog", "aria-label": `Row ${at + 1}`, onclose: () => dialog.remove() },
    h("div", { class: "heading" }, h("h2", {}, `Row ${number(at + 1)}`), h("form", { method: "dialog" }, h("button", { class: "plain", "aria-label": "Close" }, icon("close")))),
    h("dl", { class: "properties" }, columns.map((column, place) => h("div", {},
      h("dt", {}, shown(column.name), h("span", { class: "type" }, shown(shortType(column.type)))),
      h("dd", {}, old && old[place] !== row[place] ? [h("del", {}, valueOf(old[place])), " ", h("ins", {}, valueOf(row[place]))] : valueOf(row[place]))))));
  document.body.append(dialog);
  dialog.showModal();
}

function valueOf(one) {
  if (one === null) return h("span", { class: "null" }, "NULL");
  if (one === "") return h("span", { class: "null" }, "empty");
  return shown(one);
}

export function isNumber(type) {
  return /^(U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|FLOAT|DOUBLE|DECIMAL\(.*\))$/.test(type);
}

function csv(names, rows) {
  const cell = (one) => (one === null ? "" : /[",\n\r]/.test(one) || one === "" ? `"${one.replaceAll('"', '""')}"` : one);
  return [names, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

export async function copied(text, button) {
  const word = button.lastChild, before = word.textContent;
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else copyFromField(text);
    word.textContent = "Copied";
  } catch {
    word.textContent = "Not possible";
  }
  setTimeout(() => { word.textContent = before; }, 1500);
}

/** Without HTTPS scripts cannot use the clipboard, so this selects the text and runs the copy command. */
function copyFromField(text) {
  const field = h("textarea", { class: "unseen", "aria-hidden": "true", tabindex: "-1" });
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  if (!isCopied) throw new Error("nothing was copied");
}

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
