// DuckDB-Wasm through the messages of its worker, which is terminated when no query waits for it.

import { Refused } from "../../server.js";
import { texts } from "./arrow.js";

const DUCKDB = new URL("duckdb/", document.baseURI);
const WORKER = new URL("ui/worker.js", document.baseURI).href;
/** Rules of the optimizer that would hide the columns that a query needs. */
const HIDING = "filter_pushdown,statistics_propagation,empty_result_pullup,late_materialization";

/** One worker, which runs one query at a time. */
class Engine {
  constructor() {
    this.waiting = new Map();
    this.sent = 0;
    this.worker = new Worker(script());
    this.worker.addEventListener("message", ({ data }) => this.#hear(data));
    this.worker.addEventListener("error", (event) => this.end(new Refused(500, `DuckDB cannot be started here: ${event.message}`)));
    this.ready = this.ask("INSTANTIATE", [new URL("duckdb-eh.bin", DUCKDB).href, null]);
  }

  ask(type, data, moved = []) {
    if (this.ended) return Promise.reject(this.ended);
    this.sent += 1;
    this.worker.postMessage({ messageId: this.sent, type, data }, moved);
    return new Promise((resolve, reject) => this.waiting.set(this.sent, { resolve, reject }));
  }

  end(error) {
    this.ended = error;
    this.worker.terminate();
    for (const { reject } of this.waiting.values()) reject(error);
    this.waiting.clear();
  }

  #hear({ requestId, type, data }) {
    const asked = this.waiting.get(requestId);
    if (!asked || type === "LOG" || type.includes("PROGRESS")) return;
    this.waiting.delete(requestId);
    if (type === "ERROR") asked.reject(new Refused(400, String(data.message)));
    else asked.resolve(data);
  }
}

let engine = null;

/** Run work with an empty database, one at a time; `signal` terminates the worker. */
export async function working(signal, work) {
  signal?.throwIfAborted();
  if (!engine || engine.ended) engine = new Engine();
  const mine = engine;
  const end = () => mine.end(signal.reason);
  signal?.addEventListener("abort", end);
  try {
    await mine.ready;
    return await work(() => opened(mine));
  } catch (error) {
    // After running out of memory its state is undefined.
    if (!(error instanceof Refused) || /out of memory|memory access|unreachable/i.test(error.message)) mine.end(error);
    throw error;
  } finally {
    signal?.removeEventListener("abort", end);
  }
}

async function opened(mine) {
  await mine.ask("OPEN", { path: ":memory:" });
  const connection = await mine.ask("CONNECT", null);
  const database = {
    /** Names and rows of a statement whose columns are all text. */
    texts: async (statement) => texts(await mine.ask("RUN_QUERY", [connection, statement])),
    file: (name, bytes) => mine.ask("REGISTER_FILE_BUFFER", [name, bytes], [bytes.buffer]),
    dropFile: (name) => mine.ask("DROP_FILE", name),
    /** Disable external access, irreversibly. */
    close: async () => {
      await database.texts("SET enable_external_access = false");
      await database.texts("SET lock_configuration = true");
    },
  };
  for (const setting of ["memory_limit = '1GB'", "autoload_known_extensions = false", "autoinstall_known_extensions = false"]) {
    await database.texts(`SET ${setting}`);
  }
  return database;
}

/** Columns that a query reads, by names of tables without namespaces; null for all columns. */
export async function columnsRead(database, query) {
  await database.texts(`SET disabled_optimizers = '${HIDING}'`);
  await database.close();
  const { rows } = await database.texts(`EXPLAIN (FORMAT json) ${query}`);
  const found = new Map();
  const walk = (node) => {
    const { Table: table, Projections: read } = node.extra_info ?? {};
    if (table !== undefined) {
      const name = table.split(".").at(-1);
      const columns = read === undefined ? [] : [read].flat();
      found.set(name, [...(found.get(name) ?? []), ...columns]);
    }
    node.children?.forEach(walk);
  };
  for (const [, plan] of rows) JSON.parse(plan).forEach(walk);
  return found;
}

/** The only function that creates worker scripts. */
function script() {
  if (!globalThis.trustedTypes) return WORKER;
  script.policy ??= trustedTypes.createPolicy("trinitylake-sql", { createScriptURL: () => WORKER });
  return script.policy.createScriptURL("");
}
