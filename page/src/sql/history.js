// The last queries that this browser ran. Signing out deletes them.

const KEY = "trinitylake.queries";
const MAX_KEPT = 30, MAX_SIZE = 20_000;

export function queries() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found.filter((one) => typeof one?.query === "string") : [];
  } catch {
    return [];
  }
}

export function keep(query) {
  if (query.length > MAX_SIZE) return;
  store([{ query, at: Date.now() }, ...queries().filter((one) => one.query !== query)].slice(0, MAX_KEPT));
}

export function forget() {
  store([]);
}

function store(found) {
  try {
    if (found.length) localStorage.setItem(KEY, JSON.stringify(found));
    else localStorage.removeItem(KEY);
  } catch {
    // The browser does not allow storage, so there is no history.
  }
}
