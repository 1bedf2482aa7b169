// XXH3 with 64 bits (format §5), of more than 240 bytes, which every node file has.

const SECRET = Uint8Array.from((
  "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221" +
  "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8" +
  "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb" +
  "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
).match(/../g), (one) => Number.parseInt(one, 16));
const KEYS = new DataView(SECRET.buffer);
const P32 = [0x9E3779B1n, 0x85EBCA77n, 0xC2B2AE3Dn];
const P64 = [0x9E3779B185EBCA87n, 0xC2B2AE3D27D4EB4Fn, 0x165667B19E3779F9n, 0x85EBCA77C2B2AE63n, 0x27D4EB2F165667C5n];
const LOW = 0xFFFFFFFFn, ALL = 0xFFFFFFFFFFFFFFFFn;
const STRIPE = 64, STRIPES = 16, BLOCK = STRIPE * STRIPES;

/** 16 hexadecimal digits. */
export function checksum(bytes) {
  const length = bytes.length;
  if (length <= 240) throw new Error("too short for a node file");
  const data = new DataView(bytes.buffer, bytes.byteOffset, length);
  const sums = [P32[2], P64[0], P64[1], P64[2], P64[3], P32[1], P64[4], P32[0]];
  const blocks = Math.floor((length - 1) / BLOCK);
  for (let block = 0; block < blocks; block += 1) {
    for (let stripe = 0; stripe < STRIPES; stripe += 1) add(sums, data, block * BLOCK + stripe * STRIPE, 8 * stripe);
    for (let lane = 0; lane < 8; lane += 1) {
      const mixed = sums[lane] ^ (sums[lane] >> 47n) ^ KEYS.getBigUint64(SECRET.length - STRIPE + 8 * lane, true);
      sums[lane] = (mixed * P32[0]) & ALL;
    }
  }
  const rest = Math.floor((length - 1 - blocks * BLOCK) / STRIPE);
  for (let stripe = 0; stripe < rest; stripe += 1) add(sums, data, blocks * BLOCK + stripe * STRIPE, 8 * stripe);
  add(sums, data, length - STRIPE, SECRET.length - STRIPE - 7);
  let found = (BigInt(length) * P64[0]) & ALL;
  for (let pair = 0; pair < 4; pair += 1) {
    const one = sums[2 * pair] ^ KEYS.getBigUint64(11 + 16 * pair, true);
    const other = sums[2 * pair + 1] ^ KEYS.getBigUint64(19 + 16 * pair, true);
    const product = one * other;
    found = (found + ((product & ALL) ^ (product >> 64n))) & ALL;
  }
  found ^= found >> 37n;
  found = (found * 0x165667919E3779F9n) & ALL;
  found ^= found >> 32n;
  return found.toString(16).padStart(16, "0");
}

function add(sums, data, at, key) {
  for (let lane = 0; lane < 8; lane += 1) {
    const value = data.getBigUint64(at + 8 * lane, true);
    const mixed = value ^ KEYS.getBigUint64(key + 8 * lane, true);
    sums[lane ^ 1] = (sums[lane ^ 1] + value) & ALL;
    sums[lane] = (sums[lane] + (mixed & LOW) * (mixed >> 32n)) & ALL;
  }
}
