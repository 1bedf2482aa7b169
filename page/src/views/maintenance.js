// Maintenance: its policy, its last runs, and an estimate of what it would delete, started by the user.

import { h, icon, replace, shown } from "../dom.js";
import { badge, card, facts, grid, heading, note, properties } from "../parts.js";
import { link } from "../routes.js";
import { counted, duration, number, size, when } from "../words.js";

const POLL_MILLIS = 1000;
const STEPS = { compact: "Small files compacted", "expire snapshots": "Snapshots of tables expired", vacuum: "Unused files deleted" };

export async function maintenance({ source, signal }) {
  const place = h("div", { "aria-live": "polite" });
  const button = h("button", { type: "button", class: "main", onclick: begin }, icon("play"), "Estimate");
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
    replace(place, estimate(found, button));
    while (found.state === "running") {
      await new Promise((done) => setTimeout(done, POLL_MILLIS));
      found = await source.maintenance(signal);
      replace(place, estimate(found, button));
    }
  }
  const found = await source.maintenance(signal);
  replace(place, estimate(found, button));
  if (found.state === "running") watch(found).catch(() => {});
  return h("div", {}, heading("Maintenance"),
    h("p", { class: "quiet lead" }, "Maintenance compacts small files, expires old versions and deletes files that nothing needs. This page only shows the state. The command ", h("code", {}, "trinitylake maintain"), " runs maintenance, and the server runs it on its schedule."),
    h("div", { class: "columns" }, card("Policy", policy(found.policy)), h("div", {}, card("Last run by this server", lastRun(found)), card("Last steps in the log", lastSteps(found["last-steps"])))), place);
}

function policy(one) {
  const of = (name) => one.properties[`maintenance.${name}`];
  const steps = [["compact", "compact small files"], ["compact-tree", "compact the tree"], ["expire-snapshots", "expire snapshots of tables"], ["expire", "expire versions"], ["vacuum", "delete unused files"]];
  return properties([
    ["Versions are kept for", `${duration(one["maximum-version-age-millis"])}, and always the newest ${number(one["minimum-versions-to-keep"])}`],
    ["Compaction", of("compact") === "true" ? `of ${of("compact.min-files")} or more small files, and of files with ${of("compact.min-deleted-percent")} % deleted rows` : "off"],
    ["Unused files are deleted after", of("grace") || duration(one["transaction-age-millis"])],
    ["Steps", steps.filter(([name]) => of(name) === "true").map(([, text]) => text).join(", ") || "none"],
    ["Schedule of this server", one["period-seconds"] ? `every ${duration(1000 * one["period-seconds"])}` : "none"],
  ], "text");
}

function lastRun(found) {
  const run = found["last-run"];
  if (!run) return h("p", { class: "quiet" }, found.policy["period-seconds"] ? "No run has ended since the server started." : ["This server runs no maintenance (", h("code", {}, "serve --maintenance-every"), ")."]);
  const { counts } = run;
  return [
    facts([["Ended", when(run["ended-at-millis"])], ["Result", badge(run.outcome, run.outcome === "done" ? "good" : "bad")], ["Duration", duration(1000 * run.seconds)]]),
    run.outcome === "done" ? properties([["Tables compacted", counts.tables_compacted], ["Tables skipped", counts.tables_skipped], ["Versions expired", counts.versions_expired],
      ["Files deleted", `${number(counts.files_deleted)}, ${size(counts.bytes_deleted)}`]], "text") : null,
  ];
}

/** Steps by any process that made a version; a step without work makes none. */
function lastSteps(steps) {
  return grid("Last steps in the log", ["Step", "Committed", "Version", "Author", "Message"], steps.map((one) => [
    STEPS[one.step], when(one["created-at-millis"]), h("a", { href: link("latest", "version", [String(one.version)]) }, number(one.version)), shown(one.author), shown(one.message),
  ]), "No version of the log is from maintenance. Expiry, and a step without work, make no version.");
}

function estimate(found, button) {
  const head = (...rest) => h("div", { class: "heading" }, h("h2", {}, "What maintenance would delete now"), h("div", { class: "beside" }, ...rest));
  if (found.state === "none") return card(null, head(button), h("p", { class: "quiet" }, "There is no estimate yet. It reads the metadata of all tables."));
  if (found.state === "running") {
    const done = Object.entries(found.progress).map(([what, files]) => `${counted(files, "file")} ${what}`).join(", ");
    return card(null, head(button), h("p", { class: "waiting", role: "status" }, done || "Starting…"));
  }
  return h("div", {}, card(null,
    head(button, h("span", { class: "quiet" }, "Estimated ", when(found["ended-at-millis"]))),
    found.state === "failed" ? note("bad", shown(found.problem)) : null,
    found.expire ? expire(found.expire) : null),
  found.vacuum ? vacuum(found.vacuum) : null);
}

function expire(one) {
  if (!one.versions) return h("p", { class: "quiet" }, "No version is old enough to expire.");
  return facts([["Versions that expire", number(one.versions)], ["From", number(one.first)], ["To", number(one.last)], ["Their roots", size(one["size-bytes"])]]);
}

function vacuum(one) {
  const sum = (files) => Object.values(files).reduce((total, each) => total + each["size-bytes"], 0);
  const most = Math.max(...[...Object.values(one.deleted), ...Object.values(one.kept)].map((each) => each["size-bytes"]), 1);
  const lines = (files) => Object.entries(files).sort((a, b) => b[1]["size-bytes"] - a[1]["size-bytes"]).map(([what, each]) => [
    shown(what), number(each.files), h("span", { class: "bar" }, h("meter", { min: 0, max: most, value: each["size-bytes"], "aria-label": "Share" }), size(each["size-bytes"]))]);
  const columns = ["Kind", ["Files", "number"], "Size"];
  return [
    card("Unused files", facts([["Would be freed", size(sum(one.deleted))], ["In use", size(sum(one.kept))], ["Too young to delete", size(one.young["size-bytes"])],
      one.unknown.files ? ["Of unknown origin", counted(one.unknown.files, "file")] : null]),
    grid("Unused files", columns, lines(one.deleted), "Nothing would be deleted.")),
    Object.keys(one["deleted-by-folder"]).length ? card("Unused files by table folder", grid("By folder", columns, lines(one["deleted-by-folder"]))) : null,
    card("Files in use", grid("Files in use", columns, lines(one.kept), "None.")),
  ];
}
