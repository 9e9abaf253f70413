// Runs the unit tests: esbuild makes a bundle of each file in test/, and node's test runner runs it.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import esbuild from "esbuild";

const here = import.meta.dirname;
const out = mkdtempSync(join(tmpdir(), "skein-page-test-"));
const files = readdirSync(join(here, "test")).filter((name) => name.endsWith(".test.ts"));
await esbuild.build({
  absWorkingDir: here,
  entryPoints: files.map((name) => join("test", name)),
  bundle: true,
  platform: "node",
  format: "esm",
  outdir: out,
  outExtension: { ".js": ".mjs" },
  sourcemap: "inline",
  logLevel: "warning",
});
const ran = spawnSync(process.execPath, ["--test", "--enable-source-maps", out], { stdio: "inherit" });
rmSync(out, { recursive: true, force: true });
process.exit(ran.status ?? 1);
