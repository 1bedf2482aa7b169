// DOM elements from text and elements, never from markup. All content of a lakehouse passes this module.

const SVG = "http://www.w3.org/2000/svg";
const CONTROL = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/u;
const CONTROLS = new RegExp(CONTROL.source, "gu");

/** An element. Attributes that could run code or leave the page are refused. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) {
      if (typeof value !== "function") throw new Error(`${name} is no function`);
      element.addEventListener(name.slice(2), value);
    } else {
      if (["style", "srcdoc", "src", "action", "formaction"].includes(name)) throw new Error(`no attribute ${name}`);
      if (name.endsWith("href") && !String(value).startsWith("#")) throw new Error("links lead to parts of the page");
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/** Text from a lakehouse. Invisible and bidirectional control characters are shown as code points. */
export function shown(text) {
  const value = String(text);
  if (!CONTROL.test(value)) return h("bdi", {}, value);
  const parts = [];
  let end = 0;
  for (const found of value.matchAll(CONTROLS)) {
    parts.push(value.slice(end, found.index));
    const number = found[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    parts.push(h("span", { class: "escape" }, `U+${number}`));
    end = found.index + found[0].length;
  }
  return h("bdi", {}, ...parts, value.slice(end));
}

/** As `text`, for titles and labels. */
export function plain(text) {
  return String(text).replace(CONTROLS, "\ufffd");
}

/** Text of several lines, with line ends and tabs. */
export function lines(text) {
  return String(text)
    .split("\n")
    .flatMap((line, number) => [number ? h("br") : null, ...line.split("\t").flatMap((part, at) => [at ? "\t" : null, shown(part)])]);
}

export function icon(name) {
  const paths = {
    home: "M3 11.500 12 4l9 7.500V20a1 1 0 0 1-1 1h-5v-6H9v6H4a1 1 0 0 1-1-1z",
    log: "M6 4v16M6 7a2 2 0 1 0 0-.010M6 17a2 2 0 1 0 0-.010M18 12a2 2 0 1 0 0-.010M6 12h10",
    open: "M12 3a9 9 0 1 0 9 9M12 7v5l3 2M17 3h4v4M21 3l-5 5",
    tree: "M10 3h4v4h-4zM3 17h4v4H3zM10 17h4v4h-4zM17 17h4v4h-4zM12 7v10M5 17v-4h14v4",
    maintenance: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v5M14 11v5",
    sql: "m5 7 5 5-5 5M12 18h7",
    search: "M11 5a6 6 0 1 0 0 12 6 6 0 0 0 0-12zM15.500 15.500 20 20",
    clock: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM12 8v4l3 2",
    theme: "M12 4a8 8 0 1 0 8 8 6 6 0 0 1-8-8z",
    namespace: "M3 6a1 1 0 0 1 1-1h5l2 2.500h9a1 1 0 0 1 1 1V18a1 1 0 0 1-1 1H4a1 1 0 0 1-1-1z",
    table: "M4 5h16v14H4zM4 10h16M4 14.500h16M10 10v9",
    view: "M2.500 12S6 5.500 12 5.500 21.500 12 21.500 12 18 18.500 12 18.500 2.500 12 2.500 12zM12 9.500a2.500 2.500 0 1 0 0 5 2.500 2.500 0 0 0 0-5z",
    transaction: "M5 8h13l-3-3M19 16H6l3 3",
    menu: "M4 7h16M4 12h16M4 17h16",
    chevron: "m9 6 6 6-6 6",
    close: "M6 6l12 12M18 6 6 18",
    copy: "M9 9h11v11H9zM15 9V4H4v11h5",
    download: "M12 4v11M7 11l5 5 5-5M5 20h14",
    compare: "M7 4v13M7 17l-3-3M7 17l3-3M17 20V7M17 7l-3 3M17 7l3 3",
    chart: "M4 20h16M7 16v-5M12 16V6M17 16v-8",
    link: "M10 14a4 4 0 0 0 6 .5l3-3a4 4 0 0 0-5.700-5.700l-1 1M14 10a4 4 0 0 0-6-.5l-3 3a4 4 0 0 0 5.700 5.700l1-1",
    play: "M8 5v14l11-7z",
    storage: "M4 6c0-3 16-3 16 0s-16 3-16 0zM4 6v6c0 3 16 3 16 0V6M4 12v6c0 3 16 3 16 0v-6",
    key: "M14.500 4a5.500 5.500 0 1 0-5 7.800L4 17.300V20h3v-2h2v-2h2l1.200-1.200M16 8.500h.010",
  };
  return svg(
    "svg",
    { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: paths[name] ?? paths.table }),
  );
}

/** The logo. */
export function mark() {
  const waves = [8, 12, 16].map((y) => `M3 ${y}c3-2.500 6-2.500 9 0s6 2.500 9 0`).join("");
  return svg("svg", { class: "icon mark", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" }, svg("path", { d: waves }));
}
