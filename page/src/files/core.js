// The core of the library, compiled to WebAssembly: it reads what is fetched here, by the rules that it has everywhere.

import { Refused } from "../server.js";

const FILE = new URL("ui/core.bin", document.baseURI);
const MAX_PAGE = 64 << 20;

export class Damaged extends Error {
  code = 500;
}

let loading = null;

/** Begins to load it; the next caller waits for the same. */
export function load() {
  loading ??= instance().catch((error) => {
    loading = null;
    throw error;
  });
  return loading;
}

/**
 * The reply to a question (`page/core/src/question.rs`), with the bytes of a file where it is about one: an answer, or
 * which nodes are wanted first. Throws `Damaged` and `Refused`.
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

/** What a frame of ZSTD holds, at most `limit` bytes. Throws `Damaged`. */
export async function decompressor() {
  const core = await load();
  return (frame, limit = MAX_PAGE) => guarded(() => {
    const answer = limit <= MAX_PAGE ? core.decompress(...given(core, frame), limit) : 0n;
    if (answer === 0n) throw new Damaged("a compressed part of a file is damaged, or holds more than it may");
    return taken(core, answer);
  });
}

/** A server of files may have unpacked it on the way. */
async function instance() {
  const answer = await fetch(FILE);
  if (!answer.ok) throw new Refused(answer.status, "A file of this page is not there: ui/core.bin.");
  let bytes = new Uint8Array(await answer.arrayBuffer());
  if (bytes[0] === 0x1f) bytes = await unzipped(bytes);
  return (await WebAssembly.instantiate(bytes, {})).instance.exports;
}

export async function unzipped(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** What has ended in a trap may have left anything behind: it begins anew. */
function guarded(work) {
  try {
    return work();
  } catch (error) {
    if (!(error instanceof WebAssembly.RuntimeError)) throw error;
    loading = null;
    throw new Damaged(`a file of the lakehouse cannot be read: ${error.message}`);
  }
}

/** Bytes in the memory of the core, which owns them from now on. */
function given(core, bytes) {
  const at = core.allocate(bytes.length) >>> 0;
  new Uint8Array(core.memory.buffer).set(bytes, at);
  return [at, bytes.length];
}

/** The bytes of an answer: the address in the upper half, the size in the lower one. */
function taken(core, answer) {
  const at = Number(BigInt.asUintN(32, answer >> 32n)), size = Number(BigInt.asUintN(32, answer));
  const bytes = new Uint8Array(core.memory.buffer).slice(at, at + size);
  core.release(at, size);
  return bytes;
}
