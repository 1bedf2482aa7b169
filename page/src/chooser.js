// Time travel: choice of a version by number, time or tag.

import { h, icon, replace, shown } from "./dom.js";
import { note } from "./parts.js";
import { link, versionState } from "./routes.js";

const STANDS_STILL = new Set(["overview", "namespace", "table", "view", "search", "sql", "tree"]);

export function choose(source, lakehouse, route) {
  const wrong = h("div", { "aria-live": "polite" });
  const version = h("input", {
    type: "number", id: "chosen-version", min: lakehouse["oldest-version"], max: lakehouse.version, step: 1, inputmode: "numeric",
  });
  const moment = h("input", { type: "datetime-local", id: "chosen-moment", step: 1 });
  const go = (at) => {
    dialog.close();
    const page = STANDS_STILL.has(route.page) ? route.page : "overview";
    location.hash = link(at, page, page === route.page ? route.parts : [], Object.fromEntries(route.options));
  };
  const resolve = async (address) => {
    try {
      go(versionState((await source.address(address)).version));
    } catch (error) {
      replace(wrong, note("bad", shown(error.message)));
    }
  };
  const tags = Object.entries(lakehouse.tags ?? {});
  const dialog = h("dialog", { class: "chooser", "aria-labelledby": "chooser-title", onclose: () => dialog.remove() },
    h("div", { class: "heading" }, h("h2", { id: "chooser-title" }, icon("clock"), "Travel in time"),
      h("form", { method: "dialog" }, h("button", { class: "plain", "aria-label": "Close" }, "✕"))),
    h("button", { type: "button", class: "main", onclick: () => go("latest") }, "Latest version"),
    h("form", { onsubmit: (event) => { event.preventDefault(); if (version.value) resolve(`@version/${version.value}`); } },
      h("label", { for: "chosen-version" }, `Version, ${lakehouse["oldest-version"]} to ${lakehouse.version}`),
      h("div", { class: "together" }, version, h("button", { type: "submit" }, "Go"))),
    h("form", { onsubmit: (event) => {
      event.preventDefault();
      if (moment.value) resolve(`@timestamp/${new Date(moment.value).toISOString()}`);
    } },
    h("label", { for: "chosen-moment" }, "As it was at"),
    h("div", { class: "together" }, moment, h("button", { type: "submit" }, "Go"))),
    tags.length ? h("div", {}, h("p", { class: "label" }, "Tags"), h("ul", { class: "choices" }, tags.map(([name, number]) =>
      h("li", {}, h("button", { type: "button", onclick: () => go(`tag~${name}`) }, shown(name), h("span", { class: "quiet" }, ` version ${number}`)))))) : null,
    wrong);
  document.body.append(dialog);
  dialog.showModal();
}
