// Builds the page: `node build.js FOLDER` writes index.html, the bundled scripts, the reader of lakehouse files as
// WebAssembly, and the licenses of what others wrote. Needs `npm ci`, cargo and Rust's target wasm32-unknown-unknown.

import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const PAGE = dirname(fileURLToPath(import.meta.url));
const ROOT = dirname(PAGE);
const CRATE = "trinitylake-browser";
const TARGET = "wasm32-unknown-unknown";
/** For size. The result contains neither paths of this machine nor anything random. */
const PROFILE = {
  CARGO_PROFILE_RELEASE_CODEGEN_UNITS: "1",
  CARGO_PROFILE_RELEASE_DEBUG: "false",
  CARGO_PROFILE_RELEASE_LTO: "fat",
  CARGO_PROFILE_RELEASE_OPT_LEVEL: "z",
  CARGO_PROFILE_RELEASE_PANIC: "abort",
  CARGO_PROFILE_RELEASE_STRIP: "true",
  CONST_RANDOM_SEED: "trinitylake",
};
/** What the compiler emits by default; browsers have it since 2021. */
const FEATURES = ["bulk-memory", "multivalue", "mutable-globals", "nontrapping-float-to-int", "reference-types", "sign-ext"];

/** The crate as a WebAssembly module. */
function compiled() {
  const folder = join(ROOT, "target", "wasm");
  const cargoHome = process.env.CARGO_HOME ?? join(homedir(), ".cargo");
  const env = {
    ...process.env,
    ...PROFILE,
    CARGO_TARGET_DIR: folder,
    RUSTFLAGS: `--remap-path-prefix=${cargoHome}=cargo --remap-path-prefix=${ROOT}=trinitylake`,
  };
  const args = ["rustc", "--locked", "--release", "--package", CRATE, "--lib", "--crate-type", "cdylib", "--target", TARGET];
  execFileSync("cargo", args, { cwd: ROOT, env, stdio: "inherit" });
  const module = join(folder, TARGET, "release", `${CRATE.replace("-", "_")}.wasm`);
  const small = join(folder, "small.wasm");
  const flags = ["-Oz", ...FEATURES.map((one) => `--enable-${one}`), "--strip-debug", "--strip-producers", "--strip-target-features"];
  execFileSync(join(PAGE, "node_modules/.bin/wasm-opt"), [...flags, module, "-o", small], { stdio: "inherit" });
  return gzipSync(readFileSync(small), { level: 9 });
}

/**
 * One bundle for the start and one for each part that is loaded later; the worker is a script of its own. Returns the
 * names of the libraries in them.
 */
async function bundled(folder) {
  const options = { bundle: true, minify: true, target: "es2022", legalComments: "none", logLevel: "warning" };
  const { metafile } = await build({
    ...options,
    absWorkingDir: PAGE,
    metafile: true,
    // Next to the start, the modules that tests load by name.
    entryPoints: ["src/app.js", "src/style.css", "src/dom.js", "src/files/source.js", "src/files/sql/duckdb.js"],
    outbase: "src",
    outdir: folder,
    format: "esm",
    splitting: true,
    chunkNames: "[name]-[hash]",
  });
  await build({ ...options, absWorkingDir: PAGE, entryPoints: ["src/files/sql/worker.js"], outfile: join(folder, "worker.js"), format: "iife" });
  const names = Object.keys(metafile.inputs).map((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1]);
  return [...new Set(names.filter(Boolean))].sort();
}

/** Name, version and license of a library. */
function licenseOf(name) {
  const folder = join(PAGE, "node_modules", name);
  const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  return `${name} ${version}\n\n${readFileSync(join(folder, "LICENSE"), "utf8")}`;
}

async function main(folder) {
  const temporary = join(ROOT, "target", "page");
  rmSync(temporary, { recursive: true, force: true });
  mkdirSync(join(temporary, "ui"), { recursive: true });
  const libraries = await bundled(join(temporary, "ui"));
  writeFileSync(join(temporary, "ui/core.bin"), compiled());
  cpSync(join(PAGE, "src/icon.svg"), join(temporary, "ui/icon.svg"));
  cpSync(join(PAGE, "index.html"), join(temporary, "index.html"));
  writeFileSync(join(temporary, "ui/licenses.txt"), libraries.map(licenseOf).join("\n\n"));
  rmSync(folder, { recursive: true, force: true });
  renameSync(temporary, folder);
}

await main(resolve(process.argv[2] ?? join(ROOT, "python/trinitylake/page/built")));
