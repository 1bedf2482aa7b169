// The tree of node files, level by level along the selected path.

import { h, icon, shown } from "../dom.js";
import { badge, card, facts, grid, heading } from "../parts.js";
import { link, linkTo } from "../routes.js";
import { counted, number, size } from "../words.js";

export async function tree({ source, route, signal }) {
  const { at, options } = route;
  const way = /^\d+(\.\d+)*$/.test(options.get("way") ?? "") ? options.get("way").split(".") : [];
  const nodes = await Promise.all(
    [...Array(way.length + 1).keys()].map((depth) => source.tree(at, way.slice(0, depth).join("."), signal)));
  return h("div", {},
    heading("Storage tree"),
    h("p", { class: "quiet lead" }, "Every version is the root of a search tree of files that never change. New entries wait in the buffer of a node before they move to its children."),
    h("ol", { class: "levels" }, nodes.map((node, depth) => level(at, node, way, depth))),
    content(at, nodes.at(-1)));
}

function level(at, node, way, depth) {
  const kind = depth === 0 ? "Root" : node.height === 0 ? "Leaf" : "Inner node";
  const chosen = way[depth] === undefined ? -1 : Number(way[depth]);
  return h("li", { class: "level" },
    h("a", { class: `node${depth === way.length ? " chosen" : ""}`, href: link(at, "tree", [], { way: way.slice(0, depth).join(".") }), "aria-current": depth === way.length ? "true" : null },
      h("b", {}, kind), h("span", {}, counted(node["n-keys"], "key")),
      node["n-messages"] ? h("span", { class: "waits" }, `${counted(node["n-messages"], "message")} waiting`) : null,
      h("span", { class: "quiet" }, size(node["size-bytes"]))),
    node.children.length ? h("div", { class: "children", role: "group", "aria-label": `Children of the ${kind.toLowerCase()}` },
      node.children.map((_, number_) => {
        const from = number_ ? node.separators[number_ - 1]?.name.join(".") ?? "" : "";
        return h("a", {
          class: `child${number_ === chosen ? " chosen" : ""}`, href: link(at, "tree", [], { way: [...way.slice(0, depth), number_].join(".") }),
          title: from ? "" : null, "aria-current": number_ === chosen ? "true" : null,
        }, h("span", { class: "unseen" }, `Child ${number_ + 1}, `), from ? ["from ", shown(from)] : "the first keys");
      }),
      node["n-children"] > node.children.length ? h("span", { class: "quiet" }, `and ${number(node["n-children"] - node.children.length)} more`) : null) : null);
}

function content(at, node) {
  const name = (one) => (one.kind === "transaction"
    ? h("span", { class: "object" }, icon("transaction"), shown(one.name.join(".")))
    : h("a", { class: "object", href: linkTo(at, one.kind, one.name) }, icon(one.kind), h("span", {}, shown(one.name.join(".")))));
  return h("div", {},
    card("This node", facts([["File", h("code", {}, shown(node.path))], ["Height", number(node.height)]])),
    h("div", { class: "columns" },
      card("Keys", grid("Keys", ["Key", "Kind"], node.keys.map((one) => [name(one), badge(one.kind)]), "This node has no keys.")),
      card("Buffer, newest last", grid("Messages", ["Message", "Key"], node.messages.map((one) => [
        badge(one.removes ? "remove" : "set", one.removes ? "bad" : "good"), name(one),
      ]), "The buffer is empty."))));
}
