// Small charts of commits, as SVG.

import { h, svg } from "./dom.js";
import { counted, moment, number, when } from "./words.js";

const WIDTH = 600, HEIGHT = 44, BARS = 48;

/** Chart of the number of versions in equal intervals of time. */
export function sparkline(entries) {
  const times = entries.map((one) => one["created-at-millis"]).filter((one) => one !== null);
  if (times.length < 2) return null;
  const [first, last] = [Math.min(...times), Math.max(...times)];
  const counts = Array(BARS).fill(0);
  for (const one of times) counts[Math.min(Math.floor(((one - first) / (last - first || 1)) * BARS), BARS - 1)] += 1;
  const most = Math.max(...counts), step = WIDTH / BARS;
  return h("figure", { class: "sparkline" },
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${counted(times.length, "commit")} from ${moment(first)} to ${moment(last)}` },
      counts.map((count, at) => svg("rect", { x: at * step + 1, width: step - 2, y: HEIGHT - Math.max((count / most) * HEIGHT, 1.5), height: Math.max((count / most) * HEIGHT, 1.5), rx: 1.5, class: count ? "bar" : "none" }))),
    h("figcaption", {}, h("span", {}, when(first)), h("span", {}, counted(times.length, "commit")), h("span", {}, when(last))));
}

/** One bar for each version, oldest first; its height is the number of changed objects. `choose(version)` is called on a click. */
export function commitBars(entries, choose) {
  const ordered = [...entries].reverse();
  const changes = (one) => one.transactions.reduce((sum, each) => sum + (each["n-changes"] ?? each.changes?.length ?? 1), 0);
  const most = Math.max(...ordered.map(changes), 1), step = WIDTH / Math.max(ordered.length, 1);
  return h("figure", { class: "sparkline choosable" },
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      ordered.map((one, at) => {
        const height = 6 + (HEIGHT - 6) * Math.sqrt(changes(one) / most);
        return svg("g", { onclick: () => choose(one.version) },
          svg("rect", { x: at * step, width: step, y: 0, height: HEIGHT, class: "target" }),
          svg("rect", { x: at * step + step * 0.15, width: step * 0.7, y: HEIGHT - height, height, rx: 1.5, class: one.tags.length ? "bar tagged" : one["rollback-to"] !== null ? "bar back" : "bar" }));
      })),
    ordered.length ? h("figcaption", {}, h("span", {}, `Version ${number(ordered[0].version)}`), h("span", {}, `Version ${number(ordered.at(-1).version)}`)) : null);
}
