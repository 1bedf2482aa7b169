// The library's core, compiled to WebAssembly: it decodes the files that the page fetches.

import { Refused } from "../server.js";

const FILE = new URL("ui/core.bin", document.baseURI);
const MAX_PAGE = 64 << 20;

export class Damaged extends Error {
  code = 500;
}

let loading = null;

/** Load the core once. */
export function load() {
  loading ??= instance().catch((error) => {
    loading = null;
    throw error;
  });
  return loading;
}

/**
 * The reply to a question (`page/core/src/question.rs`), with the bytes of a file if it is about one: an answer, or the
 * nodes that are needed first. Throws `Damaged` and `Refused`.
 */
export async function ask(question, file = new Uint8Array()) {
  const core = await load();
  const reply = guarded(() => {
    const asked = given(core, new TextEncoder().encode(JSON.stringify(question)));
    return JSON.parse(new TextDecoder().decode(taken(core, core.ask(...asked, ...given(core, file)))));
  });
  if (!reply.problem) return reply;
  const { code, message } = reply.problem;
  throw code === 500 ? new Damaged(message) : new Refused(code, message);
}

/** The content of a ZSTD frame, at most `limit` bytes. Throws `Damaged`. */
export async function decompressor() {
  const core = await load();
  return (frame, limit = MAX_PAGE) => guarded(() => {
    const answer = limit <= MAX_PAGE ? core.decompress(...given(core, frame), limit) : 0n;
    if (answer === 0n) throw new Damaged("a compressed part of a file is damaged, or exceeds the limit");
    return taken(core, answer);
  });
}

/** A file server may have decompressed it. */
async function instance() {
  const answer = await fetch(FILE);
  if (!answer.ok) throw new Refused(answer.status, "A file of this page is missing: ui/core.bin.");
  let bytes = new Uint8Array(await answer.arrayBuffer());
  if (bytes[0] === 0x1f) bytes = await unzipped(bytes);
  return (await WebAssembly.instantiate(bytes, {})).instance.exports;
}

export async function unzipped(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** After a trap the memory is undefined, so a new instance is created. */
function guarded(work) {
  try {
    return work();
  } catch (error) {
    if (!(error instanceof WebAssembly.RuntimeError)) throw error;
    loading = null;
    throw new Damaged(`a file of the lakehouse cannot be read: ${error.message}`);
  }
}

/** Bytes in the memory of the core, which takes ownership. */
function given(core, bytes) {
  const at = core.allocate(bytes.length) >>> 0;
  new Uint8Array(core.memory.buffer).set(bytes, at);
  return [at, bytes.length];
}

/** The bytes of an answer: address in the upper half, size in the lower half. */
function taken(core, answer) {
  const at = Number(BigInt.asUintN(32, answer >> 32n)), size = Number(BigInt.asUintN(32, answer));
  const bytes = new Uint8Array(core.memory.buffer).slice(at, at + size);
  core.release(at, size);
  return bytes;
}
