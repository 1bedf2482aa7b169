// Reader of Avro files (Iceberg's manifests).

import { Damaged, decompressor } from "./core.js";

const MAGIC = "Obj\u0001";
const MAX_RECORDS = 1_000_000, MAX_BLOCK = 64 << 20;

/** All records, as plain objects; numbers beyond 2^53 lose digits. Throws `Damaged`. */
export async function records(bytes) {
  try {
    return await read(bytes);
  } catch (error) {
    if (error instanceof Damaged) throw error;
    throw new Damaged(`a manifest is damaged: ${error.message}`);
  }
}

async function read(bytes) {
  const file = new Reader(bytes);
  if (String.fromCharCode(...file.take(4)) !== MAGIC) throw new Damaged("a manifest is no Avro file");
  const head = file.map(() => file.take(file.number()));
  const text = (name) => new TextDecoder().decode(head[name] ?? new Uint8Array());
  const decode = decoderOf(JSON.parse(text("avro.schema")), new Map());
  const mark = file.take(16).join();
  const found = [];
  while (file.at < bytes.length) {
    const count = file.number();
    const block = new Reader(await plain(file.take(file.number()), text("avro.codec")));
    if (count < 0 || found.length + count > MAX_RECORDS) throw new Damaged("a manifest exceeds the limits of this page");
    for (let one = 0; one < count; one += 1) found.push(decode(block));
    if (file.take(16).join() !== mark) throw new Damaged("a block of a manifest is incomplete");
  }
  return found;
}

async function plain(bytes, codec) {
  if (codec === "" || codec === "null") return bytes;
  if (codec === "zstandard") return (await decompressor())(bytes, MAX_BLOCK);
  if (codec !== "deflate") throw new Damaged(`manifests compressed with ${codec} are not supported here`);
  // PyIceberg writes three bytes of a checksum after the data, which browsers refuse and Avro readers ignore.
  return inflated(bytes).catch((error) => {
    if (error instanceof Damaged) throw error;
    return inflated(bytes.subarray(0, -3));
  });
}

async function inflated(bytes) {
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const parts = [];
  let size = 0;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    size += part.value.length;
    if (size > MAX_BLOCK) throw new Damaged("a manifest exceeds the limits of this page");
    parts.push(part.value);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** Decoder of a type. */
function decoderOf(type, named) {
  if (Array.isArray(type)) {
    const branches = type.map((one) => decoderOf(one, named));
    return (file) => branches[file.number()](file);
  }
  const kind = typeof type === "string" ? type : type.type;
  if (named.has(kind)) return (file) => named.get(kind)(file);
  switch (kind) {
    case "null": return () => null;
    case "boolean": return (file) => file.take(1)[0] === 1;
    case "int": case "long": return (file) => file.number();
    case "enum": return keep(type, named, (file) => type.symbols[file.number()]);
    case "float": return (file) => file.view(4).getFloat32(0, true);
    case "double": return (file) => file.view(8).getFloat64(0, true);
    case "bytes": return (file) => file.take(file.number());
    case "string": return (file) => new TextDecoder().decode(file.take(file.number()));
    case "fixed": return keep(type, named, (file) => file.take(type.size));
    case "array": {
      const item = decoderOf(type.items, named);
      return (file) => file.list(() => item(file));
    }
    case "map": {
      const value = decoderOf(type.values, named);
      return (file) => file.map(() => value(file));
    }
    case "record": {
      const fields = [];
      keep(type, named, (file) => Object.fromEntries(fields.map(([name, decode]) => [name, decode(file)])));
      for (const one of type.fields) fields.push([one.name, decoderOf(one.type, named)]);
      return named.get(type.name);
    }
    default:
      if (typeof type === "object" && typeof type.type === "object") return decoderOf(type.type, named);
      throw new Damaged(`a manifest has the unknown type ${kind}`);
  }
}

function keep(type, named, decode) {
  named.set(type.name, decode);
  return decode;
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  take(size) {
    if (!(size >= 0) || this.at + size > this.bytes.length) throw new Damaged("a manifest is incomplete");
    this.at += size;
    return this.bytes.subarray(this.at - size, this.at);
  }

  view(size) {
    const part = this.take(size);
    return new DataView(part.buffer, part.byteOffset, size);
  }

  number() {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const [byte] = this.take(1);
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return Number((value >> 1n) ^ -(value & 1n));
    }
    throw new Damaged("a number in a manifest is too long");
  }

  list(item) {
    const found = [];
    for (let count = this.number(); count !== 0; count = this.number()) {
      if (count < 0) this.number();
      if (found.length + Math.abs(count) > MAX_RECORDS) throw new Damaged("a manifest exceeds the limits of this page");
      for (let one = 0; one < Math.abs(count); one += 1) found.push(item());
    }
    return found;
  }

  map(value) {
    const entry = () => [new TextDecoder().decode(this.take(this.number())), value()];
    return Object.fromEntries(this.list(entry));
  }
}
