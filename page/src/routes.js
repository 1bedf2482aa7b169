// Addresses of the page: `#/<state>/<view>/<part>/…?<options>`. The state is the prefix of the server's paths.

const LATEST = "latest";

export function parse(hash) {
  const text = hash.replace(/^#\/?/, "");
  const [path, query = ""] = splitOnce(text, "?");
  const parts = path.split("/").filter((part) => part !== "").map(decoded);
  const at = parts.length && isState(parts[0]) ? parts.shift() : LATEST;
  return { at, page: parts.shift() ?? "overview", parts, options: new URLSearchParams(query) };
}

export function link(at, page, parts = [], options = {}) {
  const path = [at, page, ...parts].map(encodeURIComponent).join("/");
  const given = Object.entries(options).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${path}${query ? `?${query}` : ""}`;
}

/** Address of an object. */
export function linkTo(at, kind, name) {
  const page = { namespace: "namespace", table: "table", view: "view" }[kind] ?? "namespace";
  return link(at, page, name);
}

export function versionState(version) {
  return `version~${version}`;
}

function isState(text) {
  return text === LATEST || /^version~\d{1,18}$/.test(text) || /^tag~[A-Za-z0-9._-]{1,100}$/.test(text);
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function splitOnce(text, separator) {
  const at = text.indexOf(separator);
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}
