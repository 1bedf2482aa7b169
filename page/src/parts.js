// Parts of several views: headings, facts, tables, badges, lists that load on scrolling.

import { append, h, icon, lines, plain, replace, shown } from "./dom.js";
import { link, linkTo } from "./routes.js";

export function heading(text, ...beside) {
  return h("div", { class: "heading" }, h("h1", { tabindex: "-1" }, text), h("div", { class: "beside" }, ...beside));
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title ? h("h2", {}, title) : null, ...children);
}

/** Numbers with labels, in a row. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** Names and values, one pair per line; `kind` is "text" for values that are words. */
export function properties(entries, kind = "") {
  if (!entries.length) return h("p", { class: "quiet" }, "None.");
  return h("dl", { class: `properties ${kind}` }, entries.map(([name, value]) =>
    h("div", {}, h("dt", {}, shown(name)), h("dd", {}, lines(value)))));
}

/** A table, which is shown as cards on a phone. `columns` are texts or `[text, class]`; `rows` are lists of cell contents. */
export function grid(label, columns, rows, empty = "Nothing here.") {
  if (!rows.length) return h("p", { class: "quiet" }, empty);
  const [texts, classes] = [columns.map((one) => [one].flat()[0]), columns.map((one) => [one].flat()[1] ?? "")];
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": plain(label) },
    h("table", { role: "table", class: "cards" },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((_, at) =>
        h("th", { scope: "col", role: "columnheader", class: classes[at] }, texts[at])))),
      h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row" }, row.map((cell, at) =>
        h("td", { class: classes[at], role: "cell", "data-label": texts[at] }, cell)))))));
}

export function crumbs(at, name) {
  const above = name.slice(0, -1);
  return h("nav", { class: "crumbs", "aria-label": "Namespaces above" }, h("ol", {},
    h("li", {}, h("a", { href: link(at, "overview") }, "Lakehouse")),
    above.map((part, number) =>
      h("li", {}, h("a", { href: link(at, "namespace", name.slice(0, number + 1)) }, shown(part))))));
}

export function objectLink(at, kind, name, whole = true) {
  const text = whole ? name.join(".") : name.at(-1);
  return h("a", { class: "object", href: linkTo(at, kind, name) }, icon(kind), h("span", {}, shown(text)));
}

export function change(at, one) {
  const words = { "+": "added", "-": "removed", "~": "changed", "=": "set" };
  const target = one.kind === "namespace" || one.kind === "table" || one.kind === "view";
  const text = [icon(one.kind), h("span", {}, shown(one.name.join(".")))];
  return h("li", { class: "change" },
    h("span", { class: `sign ${words[one.sign]}`, title: words[one.sign] }, one.sign === "-" ? "−" : one.sign,
      h("span", { class: "unseen" }, ` ${words[one.sign]} ${one.kind} `)),
    target && at && one.sign !== "-"
      ? h("a", { class: "object", href: linkTo(at, one.kind, one.name) }, text)
      : h("span", { class: "object" }, text));
}

export function note(kind, ...children) {
  return h("div", { class: `note ${kind}`, role: kind === "bad" ? "alert" : null }, ...children);
}

export function waiting(text = "Reading…") {
  return h("p", { class: "waiting", role: "status" }, text);
}

/** Tabs of a view: links, so that each tab has an address. */
export function tabs(label, chosen, entries) {
  const made = entries.map(([key, text, href]) => h("a", { href, "aria-current": key === chosen ? "page" : null }, text));
  requestAnimationFrame(() => made.find((one) => one.ariaCurrent)?.scrollIntoView({ block: "nearest", inline: "nearest" }));
  return h("nav", { class: "tabs", "aria-label": label }, made);
}

/** A part of a view that loads after the rest is shown. */
export function later(signal, read, draw, text) {
  const place = h("div", {}, waiting(text));
  read().then(
    (found) => signal.aborted || replace(place, draw(found)),
    (error) => signal.aborted || error.name === "AbortError" || replace(place, note("bad", error.message)),
  );
  return place;
}

const ROW_HEIGHT = 36;
const SMALL = 200;

/**
 * A list of any length: pages load on scrolling, and only visible items have elements.
 * `load(token)` returns `{items, next}`; `draw(item)` an element.
 */
export function longList({ label, load, draw, empty, signal }) {
  const items = [];
  let next, ended = false, reading = false, failed = null;
  const list = h("ul", { class: "long", "aria-label": plain(label) });
  const box = h("div", { class: "longbox" }, list);
  const foot = h("p", { class: "quiet", role: "status" });
  const further = h("button", { type: "button", hidden: true, onclick: () => read() }, "Look further");
  const place = h("div", { class: "longlist" }, box, foot, further);

  const isLong = () => items.length > SMALL;
  async function read() {
    if (reading || ended || failed) return;
    reading = true;
    foot.textContent = items.length ? `${items.length.toLocaleString("en")} so far, reading more…` : "Reading…";
    try {
      const page = await load(next);
      items.push(...page.items);
      next = page.next ?? undefined;
      ended = next === undefined;
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      failed = error;
    } finally {
      reading = false;
    }
    paint();
  }
  function paint() {
    const long = isLong();
    box.classList.toggle("is-long", long);
    if (failed) foot.textContent = failed.message;
    else if (!items.length) foot.textContent = ended ? empty : reading ? "Reading…" : "Nothing so far";
    else if (ended) foot.textContent = items.length > 20 ? `${items.length.toLocaleString("en")} in all` : "";
    else foot.textContent = `${items.length.toLocaleString("en")} so far${long ? "; more are read as you scroll" : ""}`;
    further.hidden = ended || reading || failed !== null || long;
    const first = long ? Math.max(Math.floor(box.scrollTop / ROW_HEIGHT) - 10, 0) : 0;
    const last = long ? Math.min(first + Math.ceil((box.clientHeight || 600) / ROW_HEIGHT) + 20, items.length) : items.length;
    list.style.height = long ? `${items.length * ROW_HEIGHT}px` : "";
    list.style.paddingTop = long ? `${first * ROW_HEIGHT}px` : "";
    const focused = document.activeElement?.closest?.("li")?.dataset.at;
    list.replaceChildren();
    append(list, items.slice(first, last).map((item, number) => {
      const at = first + number;
      const line = h("li", { "data-at": at, "aria-setsize": ended ? items.length : -1, "aria-posinset": at + 1 }, draw(item));
      return line;
    }));
    if (focused !== undefined) list.querySelector(`li[data-at="${Number(focused)}"] a`)?.focus({ preventScroll: true });
    if (long && !ended && last >= items.length - 100) read();
  }
  let pending = 0;
  box.addEventListener("scroll", () => {
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(paint);
  });
  read().then(() => { if (!ended && !failed && items.length <= SMALL) read(); });
  return place;
}
