// Time travel: the banner of a past version, and the dialog with a timeline, times and tags.

import { h, icon, plain, replace, shown } from "../dom.js";
import { later, note } from "../parts.js";
import { link, versionState } from "../routes.js";
import { moment, number, when } from "../words.js";
import { aboutOf } from "../views/log.js";
import { commitBars } from "../sparkline.js";

/** Views that show one version. The other views show all versions. */
const OF_ONE_VERSION = new Set(["overview", "namespace", "table", "view", "search", "sql", "tree"]);

export function stateText(at) {
  return at.startsWith("version~") ? `Version ${number(Number(at.slice(8)))}` : `Tag ${plain(at.slice(4))}`;
}

export class TimeTravel {
  constructor(source) {
    this.source = source;
    this.addresses = new Map();
    this.button = h("div", { class: "state" });
    this.banner = h("aside", { class: "banner", "aria-label": "Time travel", hidden: true });
  }

  draw(route, lakehouse) {
    const isLatest = route.at === "latest";
    replace(this.button, lakehouse ? h("button", { type: "button", class: `version${isLatest ? "" : " past"}`, "aria-haspopup": "dialog", onclick: () => this.#choose(route, lakehouse) },
      icon("clock"), h("span", {}, isLatest ? `Latest · ${number(lakehouse.version)}` : stateText(route.at))) : null);
    const isPast = lakehouse !== null && !isLatest && OF_ONE_VERSION.has(route.page);
    this.banner.hidden = !isPast;
    replace(this.banner);
    if (isPast) this.#drawBanner(route, lakehouse);
  }

  async #drawBanner(route, lakehouse) {
    const to = (at) => link(at, route.page, route.parts, Object.fromEntries(route.options));
    const made = h("span", {}), steps = h("span", { class: "steps" });
    replace(this.banner, icon("clock"), h("p", {}, `This is ${stateText(route.at).replace(/^./, (one) => one.toLowerCase())}`, made, ", not the latest state."),
      steps, h("a", { class: "button", href: to("latest") }, "Go to the latest version"));
    if (!this.addresses.has(route.at)) this.addresses.set(route.at, this.source.address(`@${route.at.replace("~", "/")}`));
    const found = await this.addresses.get(route.at).catch(() => null);
    if (!found) return this.addresses.delete(route.at);
    const step = (version, text) => version >= lakehouse["oldest-version"] && version < lakehouse.version ? h("a", { class: "button", href: to(versionState(version)) }, text) : null;
    replace(made, `${route.at.startsWith("tag~") ? ` (version ${number(found.version)})` : ""} of ${moment(found["created-at-millis"])}`);
    replace(steps, step(found.version - 1, "Older"), step(found.version + 1, "Newer"));
  }

  #choose(route, lakehouse) {
    const { source } = this;
    const closing = new AbortController();
    const problem = h("div", { "aria-live": "polite" });
    const go = (at) => {
      dialog.close();
      const page = OF_ONE_VERSION.has(route.page) ? route.page : "overview";
      location.hash = link(at, page, page === route.page ? route.parts : [], Object.fromEntries(route.options));
    };
    const resolve = (address) => source.address(address, closing.signal).then((found) => go(versionState(found.version)), (error) => replace(problem, note("bad", shown(error.message))));
    const time = h("input", { type: "datetime-local", id: "chosen-moment", step: 1 });
    const tags = Object.entries(lakehouse.tags ?? {});
    const dialog = h("dialog", { class: "chooser", "aria-labelledby": "chooser-title", onclose: () => { closing.abort(); dialog.remove(); } },
      h("div", { class: "heading" }, h("h2", { id: "chooser-title" }, icon("clock"), "Time travel"),
        h("form", { method: "dialog" }, h("button", { class: "plain", "aria-label": "Close" }, icon("close")))),
      this.#timeline(route, lakehouse, resolve, closing.signal),
      h("form", { onsubmit: (event) => {
        event.preventDefault();
        if (time.value) resolve(`@timestamp/${new Date(time.value).toISOString()}`);
      } },
      h("label", { for: "chosen-moment" }, "State at a time"),
      h("div", { class: "together" }, time, h("button", { type: "submit" }, "Show"))),
      tags.length ? h("div", {}, h("p", { class: "label" }, "Tags"), h("ul", { class: "choices" }, tags.map(([name, version]) =>
        h("li", {}, h("button", { type: "button", onclick: () => go(`tag~${name}`) }, shown(name), h("span", { class: "quiet" }, ` version ${number(version)}`)))))) : null,
      problem,
      h("button", { type: "button", class: "main", onclick: () => go("latest") }, "Latest version"));
    document.body.append(dialog);
    dialog.showModal();
  }

  /** A slider over all versions, below bars of the newest commits. */
  #timeline(route, lakehouse, resolve, signal) {
    const now = route.at.startsWith("version~") ? Number(route.at.slice(8)) : lakehouse.tags?.[route.at.slice(4)] ?? lakehouse.version;
    const range = h("input", { type: "range", min: lakehouse["oldest-version"], max: lakehouse.version, step: 1, value: now, "aria-label": "Version" });
    const exact = h("input", { type: "number", id: "chosen-version", min: lakehouse["oldest-version"], max: lakehouse.version, step: 1, value: now, inputmode: "numeric", autofocus: true });
    const about = h("p", { class: "quiet about-version" });
    const entries = new Map();
    const describe = () => {
      const one = entries.get(Number(range.value));
      replace(about, one ? [h("b", {}, when(one["created-at-millis"])), " · ", aboutOf(one)] : `Version ${number(Number(range.value))}`);
    };
    range.addEventListener("input", () => { exact.value = range.value; describe(); });
    exact.addEventListener("input", () => { range.value = exact.value; describe(); });
    describe();
    return h("form", { class: "timeline", onsubmit: (event) => {
      event.preventDefault();
      if (exact.value) resolve(`@version/${exact.value}`);
    } },
    later(signal, () => this.source.log(undefined, { size: 100 }, signal), (found) => {
      for (const one of found.entries) entries.set(one.version, one);
      describe();
      return commitBars(found.entries, (version) => { range.value = version; exact.value = version; describe(); });
    }),
    range, about,
    h("label", { for: "chosen-version" }, `Version, ${number(lakehouse["oldest-version"])} to ${number(lakehouse.version)}`),
    h("div", { class: "together" }, exact, h("button", { type: "submit" }, "Show")));
  }
}
