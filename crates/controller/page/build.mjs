// Builds dist/ from src/. The same sources and the same esbuild give the same bytes, so that a test can compare.
//
//   node build.mjs [--watch] [--out DIR]
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { gzipSync } from "node:zlib";
import esbuild from "esbuild";

/** What the first load may have at most, gzipped. */
const FIRST_LOAD_BYTES_MAX = 150_000;

const here = import.meta.dirname;
const { values: options } = parseArgs({
  options: { watch: { type: "boolean", default: false }, out: { type: "string", default: join(here, "dist") } },
});
const out = options.out;

/** A copy that a browser has names whose work it holds, too. */
function banner() {
  const of = (name) => {
    const text = readFileSync(join(here, "node_modules", name, "LICENSE"), "utf8");
    return `${name}: ${/^Copyright.*$/m.exec(text)[0].trim()}, MIT`;
  };
  return `/*! Skein's page, Apache-2.0. It holds ${of("preact")}; ${of("uplot")}. Whole texts: LICENSES.txt */`;
}

const settings = {
  absWorkingDir: here,
  entryPoints: { page: "src/main.tsx" },
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
  legalComments: "none",
  outdir: out,
  banner: { js: banner(), css: banner() },
};

function licences() {
  const of = (name) => {
    const about = JSON.parse(readFileSync(join(here, "node_modules", name, "package.json"), "utf8"));
    const text = readFileSync(join(here, "node_modules", name, "LICENSE"), "utf8").trim();
    return `${name} ${about.version} (${about.license})\n\n${text}\n`;
  };
  const own = "page.js and page.css are a part of Skein, Apache-2.0. They hold the following software:\n";
  return [own, of("preact"), of("uplot")].join(`\n${"-".repeat(78)}\n\n`);
}

function copy() {
  for (const name of ["index.html", "icon.svg"]) copyFileSync(join(here, "src", name), join(out, name));
  writeFileSync(join(out, "LICENSES.txt"), licences());
}

mkdirSync(out, { recursive: true });
if (options.watch) {
  copy();
  await (await esbuild.context(settings)).watch();
} else {
  await esbuild.build(settings);
  copy();
  let sum = 0;
  for (const name of ["index.html", "page.js", "page.css"]) {
    const bytes = readFileSync(join(out, name));
    const packed = gzipSync(bytes, { level: 9 }).length;
    sum += packed;
    console.log(`${name}: ${bytes.length} bytes, ${packed} gzipped`);
  }
  console.log(`first load: ${sum} bytes gzipped of ${FIRST_LOAD_BYTES_MAX}`);
  if (sum > FIRST_LOAD_BYTES_MAX) process.exit(1);
}
