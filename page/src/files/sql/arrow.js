// Text columns of Arrow files, the results of DuckDB-Wasm (https://arrow.apache.org/docs/format/Columnar.html).

const MAGIC = 8;
const SCHEMA = 1, RECORD_BATCH = 3;
const CONTINUATION = 0xffffffff;

/** Names and rows of an Arrow file whose columns are all text; null for NULL. */
export function texts(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const names = [], rows = [];
  for (let at = MAGIC; at + 8 <= bytes.length && view.getUint32(at, true) === CONTINUATION;) {
    const size = view.getUint32(at + 4, true);
    if (size === 0) break;
    const message = table(view, at + 8 + view.getUint32(at + 8, true));
    const kind = view.getUint8(message(1));
    const header = table(view, pointed(view, message(2)));
    const body = at + 8 + size;
    if (kind === SCHEMA) for (const one of vector(view, header(1), 4)) names.push(text(bytes, view, pointed(view, table(view, pointed(view, one))(0))));
    if (kind === RECORD_BATCH) rows.push(...batch(bytes, view, header, body, names.length));
    const length = message(3);
    at = body + (length ? Number(view.getBigInt64(length, true)) : 0);
  }
  return { names, rows };
}

function batch(bytes, view, header, body, count) {
  const length = header(0) ? Number(view.getBigInt64(header(0), true)) : 0;
  const buffers = vector(view, header(2), 16).map((at) => body + Number(view.getBigInt64(at, true)));
  const empty = vector(view, header(1), 16).map((at) => Number(view.getBigInt64(at + 8, true)) > 0);
  const decoder = new TextDecoder();
  return Array.from({ length }, (_, row) => Array.from({ length: count }, (_, column) => {
    const [validity, offsets, data] = buffers.slice(3 * column, 3 * column + 3);
    if (empty[column] && !((bytes[validity + (row >> 3)] >> (row & 7)) & 1)) return null;
    const [start, end] = [view.getInt32(offsets + 4 * row, true), view.getInt32(offsets + 4 * row + 4, true)];
    return decoder.decode(bytes.subarray(data + start, data + end));
  }));
}

/** Positions of the fields of a FlatBuffers table; 0 for a missing field. */
function table(view, at) {
  const fields = at - view.getInt32(at, true);
  const size = view.getUint16(fields, true);
  return (field) => {
    const slot = 4 + 2 * field;
    const offset = slot < size ? view.getUint16(fields + slot, true) : 0;
    return offset ? at + offset : 0;
  };
}

function pointed(view, at) {
  return at + view.getUint32(at, true);
}

function vector(view, at, size) {
  if (!at) return [];
  const start = pointed(view, at);
  return Array.from({ length: view.getUint32(start, true) }, (_, item) => start + 4 + size * item);
}

function text(bytes, view, at) {
  return new TextDecoder().decode(bytes.subarray(at + 4, at + 4 + view.getUint32(at, true)));
}
