// Node files (format §5): Arrow IPC files with one record batch of four columns of text, as bytes that are compared.

import { decompress } from "../vendor/fzstd.js";
import { checksum } from "./checksum.js";

const COLUMNS = ["key", "value", "pnode", "txn"];
const MAGIC = "ARROW1";
const ZSTD = 1;
const UTF8 = 5;
const MIB = 1 << 20;

export class Damaged extends Error {
  code = 500;
}

/** A table of a flatbuffer: fields by their number. */
class Table {
  constructor(view, at) {
    this.view = view;
    this.at = at;
    this.fields = at - view.getInt32(at, true);
  }

  #place(field) {
    const entry = 4 + 2 * field;
    const offset = entry < this.view.getUint16(this.fields, true) ? this.view.getUint16(this.fields + entry, true) : 0;
    return offset ? this.at + offset : 0;
  }

  byte(field) {
    const place = this.#place(field);
    return place ? this.view.getUint8(place) : 0;
  }

  long(field) {
    const place = this.#place(field);
    return place ? safe(this.view.getBigInt64(place, true)) : 0;
  }

  table(field) {
    const place = this.#place(field);
    return place ? new Table(this.view, place + this.view.getUint32(place, true)) : null;
  }

  text(field) {
    const place = this.#place(field);
    if (!place) return "";
    const at = place + this.view.getUint32(place, true);
    return new TextDecoder().decode(new Uint8Array(this.view.buffer, this.view.byteOffset + at + 4, this.view.getUint32(at, true)));
  }

  /** Where the entries of a vector begin, and how many there are. */
  vector(field) {
    const place = this.#place(field);
    if (!place) return [0, 0];
    const at = place + this.view.getUint32(place, true);
    return [at + 4, this.view.getUint32(at, true)];
  }

  tables(field) {
    const [at, count] = this.vector(field);
    return Array.from({ length: count }, (_, n) => new Table(this.view, at + 4 * n + this.view.getUint32(at + 4 * n, true)));
  }
}

/** The four columns of a node file: lists of texts, one character for each byte, or null. Throws `Damaged`. */
export function columnsOf(bytes) {
  try {
    return read(bytes);
  } catch (error) {
    if (error instanceof Damaged) throw error;
    throw new Damaged(`a node file is damaged: ${error.message}`);
  }
}

function read(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const end = bytes.length - 10;
  if (end < 0 || ascii(bytes, end + 4, 6) !== MAGIC || ascii(bytes, 0, 6) !== MAGIC) throw new Damaged("a node is no Arrow file");
  const footerAt = end - view.getInt32(end, true);
  if (footerAt < 8) throw new Damaged("a node file has no footer");
  const footer = root(view, footerAt, end);
  verify(bytes, footerAt, footer);
  checkColumns(footer.table(1));
  const [block, count] = footer.vector(3);
  if (count !== 1) throw new Damaged("a node file has more than one batch");
  const at = safe(footer.view.getBigInt64(block, true));
  const metadataLength = footer.view.getInt32(block + 8, true);
  const bodyLength = safe(footer.view.getBigInt64(block + 16, true));
  const body = bytes.subarray(at + metadataLength, at + metadataLength + bodyLength);
  if (body.length !== bodyLength) throw new Damaged("a node file is cut off");
  const start = at + (view.getInt32(at, true) === -1 ? 8 : 4);
  const batch = root(view, start, at + metadataLength).table(2);
  const compression = batch.table(3);
  if (compression && compression.byte(0) !== ZSTD) throw new Damaged("only ZSTD can be read in a browser, not LZ4");
  return textColumns(batch, body, compression !== null);
}

function root(view, from, to) {
  const part = new DataView(view.buffer, view.byteOffset + from, to - from);
  return new Table(part, part.getUint32(0, true));
}

function verify(bytes, footerAt, footer) {
  for (const entry of footer.tables(4)) {
    if (entry.text(0) !== "trinitylake.checksum") continue;
    if (entry.text(1) !== `xxh3-64:${checksum(bytes.subarray(0, footerAt))}`) throw new Damaged("the checksum of a node does not fit");
  }
}

function checkColumns(schema) {
  const fields = schema.tables(1);
  if (fields.map((one) => one.text(0)).join() !== COLUMNS.join() || fields.some((one) => one.byte(2) !== UTF8)) {
    throw new Damaged("a node has other columns");
  }
}

function textColumns(batch, body, isCompressed) {
  const rows = batch.long(0);
  const [at, count] = batch.vector(2);
  if (count !== 12) throw new Damaged("a node has other columns");
  const buffers = Array.from({ length: count }, (_, n) => {
    const offset = safe(batch.view.getBigInt64(at + 16 * n, true));
    const length = safe(batch.view.getBigInt64(at + 16 * n + 8, true));
    if (offset < 0 || length < 0 || offset + length > body.length) throw new Damaged("a buffer of a node lies outside of it");
    return body.subarray(offset, offset + length);
  });
  const limit = isCompressed ? limitOf(body.length) : Infinity;
  let stated = 0;
  const whole = buffers.map((buffer) => {
    if (!isCompressed || buffer.length === 0) return buffer;
    const length = safe(new DataView(buffer.buffer, buffer.byteOffset, 8).getBigInt64(0, true));
    if (length === -1) return buffer.subarray(8);
    stated += length;
    if (length < 0 || stated > limit) throw new Damaged("a node says that it holds more than it may");
    const found = decompress(buffer.subarray(8), new Uint8Array(length));
    if (found.length !== length) throw new Damaged("a buffer of a node has another length");
    return found;
  });
  return Object.fromEntries(COLUMNS.map((name, n) => [name, texts(rows, whole[3 * n], whole[3 * n + 1], whole[3 * n + 2])]));
}

/** What the buffers of a compressed batch may hold (format §5, how large a node may be). */
function limitOf(size) {
  let limit = 1024 * size;
  if (limit > 64 * MIB) limit = Math.max(64 * MIB, 32 * size);
  return Math.min(Math.max(limit, 4 * MIB), 2048 * MIB);
}

function texts(rows, validity, offsets, data) {
  if (rows && offsets.length < 4 * (rows + 1)) throw new Damaged("a column of a node is too short");
  const ends = new DataView(offsets.buffer, offsets.byteOffset, offsets.byteLength);
  const found = new Array(rows);
  for (let row = 0; row < rows; row += 1) {
    const isThere = validity.length === 0 || (validity[row >> 3] >> (row & 7)) & 1;
    if (!isThere) {
      found[row] = null;
      continue;
    }
    const from = ends.getInt32(4 * row, true), to = ends.getInt32(4 * row + 4, true);
    if (from < 0 || to < from || to > data.length) throw new Damaged("a text of a node lies outside of it");
    found[row] = binaryText(data.subarray(from, to));
  }
  return found;
}

/** One character for each byte: such texts compare as their bytes do, which is how keys are sorted. */
function binaryText(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 4096) text += String.fromCharCode(...bytes.subarray(at, at + 4096));
  return text;
}

/** The inverse of `decoded`. */
export function encoded(text) {
  return binaryText(new TextEncoder().encode(text));
}

/** What such a text says in UTF-8. */
export function decoded(text) {
  return new TextDecoder().decode(Uint8Array.from(text, (one) => one.charCodeAt(0)));
}

function ascii(bytes, at, length) {
  return binaryText(bytes.subarray(at, at + length));
}

function safe(number) {
  const found = Number(number);
  if (!Number.isSafeInteger(found)) throw new Damaged("a number in a node is too large");
  return found;
}
