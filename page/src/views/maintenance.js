// Estimates of what maintenance would delete, started by the user.

import { h, replace, shown } from "../dom.js";
import { card, facts, grid, heading, note } from "../parts.js";
import { counted, number, size, when } from "../words.js";

const POLL_MILLIS = 1000;

export async function maintenance({ source, signal }) {
  const place = h("div", { "aria-live": "polite" });
  const button = h("button", { type: "button", class: "main", onclick: begin }, "Estimate");
  async function begin() {
    button.disabled = true;
    try {
      await watch(await source.beginMaintenance(signal));
    } catch (error) {
      if (error.name !== "AbortError") replace(place, note("bad", shown(error.message)));
    } finally {
      button.disabled = false;
    }
  }
  async function watch(found) {
    replace(place, draw(found));
    while (found.state === "running") {
      await new Promise((done) => setTimeout(done, POLL_MILLIS));
      found = await source.maintenance(signal);
      replace(place, draw(found));
    }
  }
  const found = await source.maintenance(signal);
  replace(place, draw(found));
  if (found.state === "running") watch(found).catch(() => {});
  return h("div", {}, heading("Maintenance", button),
    h("p", { class: "quiet lead" }, "What an expiry of old versions and a vacuum would delete now, by the lakehouse’s own settings. Nothing is deleted here: trinitylake maintenance does that."),
    place);
}

function draw(found) {
  if (found.state === "none") return card(null, h("p", { class: "quiet" }, "No estimate was made yet. One reads what all tables consist of."));
  if (found.state === "running") {
    const done = Object.entries(found.progress).map(([what, files]) => `${counted(files, "file")} ${what}`).join(", ");
    return card("At work", h("p", { class: "waiting", role: "status" }, done || "Beginning…"));
  }
  return h("div", {},
    found.state === "failed" ? note("bad", shown(found.problem)) : null,
    h("p", { class: "quiet lead" }, "Estimated ", when(found["ended-at-millis"])),
    found.expire ? card("Expiry", expire(found.expire)) : null,
    found.vacuum ? vacuum(found.vacuum) : null);
}

function expire(one) {
  if (!one.versions) return h("p", { class: "quiet" }, "No version is old enough.");
  return facts([["Versions", number(one.versions)], ["From", number(one.first)], ["To", number(one.last)], ["Their roots", size(one["size-bytes"])]]);
}

function vacuum(one) {
  const sum = (files) => Object.values(files).reduce((total, each) => total + each["size-bytes"], 0);
  const most = Math.max(...[...Object.values(one.deleted), ...Object.values(one.kept)].map((each) => each["size-bytes"]), 1);
  const lines = (files) => Object.entries(files).sort((a, b) => b[1]["size-bytes"] - a[1]["size-bytes"]).map(([what, each]) => [
    shown(what), number(each.files), h("span", { class: "bar" }, h("meter", { min: 0, max: most, value: each["size-bytes"], "aria-label": "Share" }), size(each["size-bytes"]))]);
  const columns = ["What", ["Files", "number"], "Size"];
  return [
    card("Vacuum", facts([["Would free", size(sum(one.deleted))], ["Stays", size(sum(one.kept))], ["Too young", size(one.young["size-bytes"])],
      one.unknown.files ? ["Of unknown origin", `${number(one.unknown.files)} files`] : null]),
    grid("What would be deleted", columns, lines(one.deleted), "Nothing would be deleted.")),
    Object.keys(one["deleted-by-folder"]).length ? card("By folder of a table", grid("By folder", columns, lines(one["deleted-by-folder"]))) : null,
    card("What stays", grid("What stays", columns, lines(one.kept), "Nothing.")),
  ];
}
