// A chart of the rows of a query: uPlot. Loaded on demand.

import uPlot from "uplot";
import { h, plain, replace } from "../dom.js";
import { isNumber } from "../datagrid.js";

const MAX_LINES = 6, HEIGHT = 320;
const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];
/** Steps between the labels of whole numbers: a count has no fractions. */
const WHOLE_STEPS = [1, 2, 5].flatMap((step) => Array.from({ length: 16 }, (_, power) => step * 10 ** power)).sort((one, other) => one - other);
const KINDS = [["line", "Lines"], ["bar", "Bars"]];

/** Formats of time labels: unit in seconds, format, and the text to add where a year, a day or a minute begins. */
const TIMES = [
  [31_536_000, "{YYYY}", null, null, null, null, null, null, 1], [2_419_200, "{MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [86_400, "{D} {MMM}", "\n{YYYY}", null, null, null, null, null, 1], [60, "{HH}:{mm}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}", null, null, null, 1],
  [1, ":{ss}", "\n{D} {MMM} {YYYY} {HH}:{mm}", null, "\n{D} {MMM} {HH}:{mm}", null, "\n{HH}:{mm}", null, 1],
];

/** `columns` and `rows` are as for a data grid. */
export function chart({ columns, rows }) {
  const numeric = columns.flatMap((one, at) => (isNumber(one.type) && rows.some((row) => row[at] !== null) ? [at] : []));
  if (!numeric.length || !rows.length) return h("p", { class: "quiet" }, "A chart needs a column of numbers.");
  const other = columns.findIndex((one) => isTime(one.type));
  const first = other >= 0 ? other : columns.findIndex((one) => !isNumber(one.type));
  const chosen = { x: first >= 0 ? first : numeric[0], kind: "" };
  chosen.y = numeric.filter((at) => at !== chosen.x).slice(0, MAX_LINES);
  if (!chosen.y.length) chosen.y = [numeric[0]];
  chosen.kind = isTime(columns[chosen.x].type) || isNumber(columns[chosen.x].type) ? "line" : "bar";
  const place = h("div", { class: "chart", role: "img", "aria-label": "Chart of the rows" });
  let drawn = null;
  const draw = () => {
    drawn?.destroy();
    replace(place);
    drawn = plot(place, columns, rows, chosen);
  };
  const select = (label, options, value, choose) => h("label", {}, `${label} `, h("select", { onchange: (event) => { choose(event.target.value); draw(); } },
    options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value) }, text))));
  const lines = h("fieldset", {}, h("legend", { class: "unseen" }, "Values"), numeric.map((at) => h("label", {}, h("input", { type: "checkbox", checked: chosen.y.includes(at), onchange: (event) => {
    chosen.y = event.target.checked ? [...chosen.y, at].slice(-MAX_LINES) : chosen.y.filter((one) => one !== at);
    draw();
  } }), plain(columns[at].name))));
  // The width is known when the element is in the page; colours change with the theme.
  const watched = new ResizeObserver(() => {
    if (!place.isConnected) watched.disconnect();
    else if (!drawn || Math.abs(drawn.width - place.clientWidth) > 2) draw();
  });
  watched.observe(place);
  const themes = new MutationObserver(() => (place.isConnected ? draw() : themes.disconnect()));
  themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  return h("div", {}, h("div", { class: "tools" },
    select("Across", columns.map((one, at) => [at, plain(one.name)]), chosen.x, (value) => { chosen.x = Number(value); }),
    select("As", KINDS, chosen.kind, (value) => { chosen.kind = value; }), lines), place);
}

function isTime(type) {
  return /^(date|timestamp)/i.test(type);
}

/** A date or time in seconds since 1970. A time without a zone is in UTC. */
function seconds(text) {
  const [, date, time = "00:00:00", zone = "Z"] = /^([^ T]+)(?:[ T](.+?)(Z|[+-]\d\d(?::?\d\d)?)?)?$/.exec(text) ?? [];
  return Date.parse(`${date}T${time}${zone.length === 3 ? `${zone}:00` : zone}`) / 1000;
}

function plot(place, columns, rows, { x, y, kind }) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const type = columns[x].type;
  const isTemporal = isTime(type), isPlain = !isTemporal && !isNumber(type);
  const position = (row, at) => (isPlain ? at : isTemporal ? seconds(row[x]) : Number(row[x]));
  const points = rows.map((row, at) => [row[x] === null ? NaN : position(row, at), row]).filter(([at]) => Number.isFinite(at));
  points.sort((one, other) => one[0] - other[0]);
  const value = (text) => (text === null || !Number.isFinite(Number(text)) ? null : Number(text));
  const data = [points.map(([at]) => at), ...y.map((column) => points.map(([, row]) => value(row[column])))];
  const [text, line] = [dark(colour("--quiet")), dark(colour("--line"))];
  const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
  const steps = (values) => (values.every((one) => one === null || Number.isInteger(one)) ? { incrs: WHOLE_STEPS } : {});
  const options = {
    width: Math.max(place.clientWidth, 200), height: HEIGHT, tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
    scales: { x: { time: isTemporal, ...(kind === "bar" ? { range: (_, least, most) => [least - margin(data[0]), most + margin(data[0])] } : {}) } },
    axes: [{ ...axis, ...(isPlain ? { values: (_, places) => places.map((at) => (Number.isInteger(at) && rows[at] ? cut(rows[at][x]) : "")), splits: () => places(rows.length, place.clientWidth) } : isTemporal ? { values: TIMES } : steps(data[0])) }, { ...axis, ...steps(data.slice(1).flat()), size: 64 }],
    series: [{ label: plain(columns[x].name), ...(isPlain ? { value: (_, at) => (at === null ? "–" : cut(rows[at]?.[x])) } : isTemporal ? { value: /^date/i.test(type) ? "{YYYY}-{MM}-{DD}" : "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" } : {}) }, ...y.map((column, at) => {
      const shade = dark(colour(COLOURS[at % COLOURS.length]));
      return { label: plain(columns[column].name), stroke: shade, width: 2, ...(kind === "bar" ? { fill: shade, paths: uPlot.paths.bars({ size: [0.7 / y.length, 60], align: y.length > 1 ? (at < y.length / 2 ? -1 : 1) : 0 }), points: { show: false } } : {}) };
    })],
  };
  return new uPlot(options, data, place);

  /** The colour of `light-dark()` for the current theme, because a canvas cannot resolve it. */
  function dark(given) {
    const [, light, dim] = /^light-dark\(([^,]+),\s*(.+)\)$/.exec(given) ?? [];
    if (!light) return given;
    const theme = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    return theme === "dark" ? dim : light;
  }
}

/** Half the distance between neighbouring values: a margin that keeps the outer bars visible. */
function margin(positions) {
  return positions.length < 2 ? 1 : Math.max((positions.at(-1) - positions[0]) / (positions.length - 1), 1e-9) / 1.5;
}

/** As many labels as fit. */
function places(count, width) {
  const step = Math.max(Math.ceil(count / Math.max(Math.floor(width / 110), 1)), 1);
  return Array.from({ length: Math.ceil(count / step) }, (_, at) => at * step);
}

function cut(text) {
  const value = plain(text ?? "NULL");
  return value.length > 14 ? `${value.slice(0, 13)}…` : value;
}
