// DuckDB-Wasm in a worker that can fetch one file, DuckDB itself: views may contain queries of other users.

// In a block: top-level names are shared by all scripts of a worker.
{
  const duckdb = new URL("../duckdb/", self.location.href);
  const program = new URL("duckdb-eh.bin", duckdb).href;
  const fetched = self.fetch.bind(self);

  /** DuckDB, compressed with gzip; a file server may have decompressed it. */
  self.fetch = async (address) => {
    if (String(address.url ?? address) !== program) throw new Error("a query fetches nothing");
    const answer = await fetched(program);
    if (!answer.ok) throw new Error(`a file of this page is missing: ${program}`);
    const bytes = new Uint8Array(await answer.arrayBuffer());
    const body = bytes[0] === 0x1f ? new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")) : bytes;
    return new Response(body, { headers: { "Content-Type": "application/wasm" } });
  };
  // Errors are in its responses.
  for (const name of ["debug", "log", "info", "warn", "error"]) self.console[name] = () => {};
  self.importScripts(new URL("duckdb-browser-eh.worker.js", duckdb).href);
  for (const name of ["XMLHttpRequest", "WebSocket", "WebSocketStream", "WebTransport", "EventSource", "Worker", "importScripts", "indexedDB", "caches"]) {
    Object.defineProperty(self, name, { value: undefined });
  }
}
