// What versions changed (format §4, §5): the last rows of a root's buffer, of the transactions that it names.

import { Refused } from "../server.js";
import { decoded } from "./arrow.js";
import { nameOf } from "./tree.js";

/** Versions between two that are compared. */
const MAX_VERSIONS = 50;
const MAX_NAMED = 20;
const COMPARES_TREES = new Set(["register", "rollback", "export", "repair"]);

/** The transactions of a root, as the log shows them. Whether a key was new, it does not say. */
export function transactionsOf(root, widths) {
  const given = committed(root);
  const target = given.map((one) => one.properties?.["trinitylake.rollback-target"]).find((one) => one !== undefined);
  return {
    "rollback-to": target !== undefined && /^\d+$/.test(target) ? Number(target) : null,
    transactions: given.map((one) => {
      const operation = one.properties?.["trinitylake.operation"] ?? "";
      const changes = COMPARES_TREES.has(operation) ? null : changed(root, [one.id]).map(([key, value]) => ({
        sign: value === null ? "-" : "=", ...nameOf(key, widths),
      }));
      return {
        "is-whole": true, operation, changes: changes?.slice(0, MAX_NAMED) ?? null, "n-changes": changes?.length ?? null, id: String(one.id ?? ""),
        message: String(one.message ?? ""), summary: String(one.summary ?? ""), author: String(one.author ?? ""),
        isolation: String(one.isolation ?? ""), "began-at-version": one.began_at_version ?? null, principal: "", properties: one.properties ?? {},
      };
    }),
  };
}

/** Objects that differ between two versions that are not far apart, without rollbacks and registrations between them. */
export async function changesBetween(from, to, rootOf, treeOf, widths) {
  const [low, high] = [Math.min(from, to), Math.max(from, to)];
  if (high - low > MAX_VERSIONS) throw new Refused(413, `Without a server, versions are compared that are at most ${MAX_VERSIONS} apart.`);
  const keys = new Set();
  for (let version = low + 1; version <= high; version += 1) {
    const root = await rootOf(version);
    const given = committed(root);
    if (given.some((one) => COMPARES_TREES.has(one.properties?.["trinitylake.operation"]))) {
      throw new Refused(413, `Version ${version} was made by a rollback or a registration, which only a server compares.`);
    }
    for (const [key] of changed(root, given.map((one) => one.id))) keys.add(key);
  }
  const [before, after] = [await treeOf(from), await treeOf(to)];
  const found = [];
  for (const key of [...keys].sort()) {
    if (key.startsWith("E===")) continue;
    const [was, is] = [await before.find(key), await after.find(key)];
    if (was !== is) found.push({ sign: was === null ? "+" : is === null ? "-" : "~", ...nameOf(key, widths) });
  }
  return found;
}

function committed(root) {
  try {
    const found = JSON.parse(decoded(root.system.committed_txns ?? "[]"));
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

function changed(root, ids) {
  return root.buffer.filter((one) => ids.includes(one.transaction) && !one.key.startsWith("E===")).map((one) => [one.key, one.value]);
}
