// Tests the page in a real browser, against a real controller:
//
//   node browser/run.mjs --url https://10.0.0.9:7443 --token-file admin.token [--out shots] [--chromium PATH]
//     [--list] [flow ...]
//
// Without names all flows are run, one after the other. They move a guest, drain a host and call that off, add rules
// and tokens and take them away again: the cluster is to be a lab's. Each says `ok`, `skipped: why` or `FAILED`, and
// the exit code is 1 if one failed. Screenshots of all screens are in the directory of --out.
import { mkdirSync, readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import { flows } from "./flows/index.mjs";
import { Lab, Skipped } from "./lab.mjs";

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    url: { type: "string" },
    "token-file": { type: "string" },
    out: { type: "string", default: "shots" },
    chromium: { type: "string", default: "/usr/bin/chromium" },
    list: { type: "boolean", default: false },
  },
});
if (options.list) {
  for (const [name, flow] of Object.entries(flows)) console.log(`${name}: ${flow.about}`);
  process.exit();
}
if (!options.url || !options["token-file"]) {
  console.error("--url and --token-file are needed: see the head of browser/run.mjs");
  process.exit(2);
}
const unknown = positionals.filter((name) => !flows[name]);
if (unknown.length > 0) {
  console.error(`no such flow: ${unknown.join(", ")}; there are ${Object.keys(flows).join(", ")}`);
  process.exit(2);
}
mkdirSync(options.out, { recursive: true });
const browser = await chromium.launch({ executablePath: options.chromium, args: ["--no-sandbox"] });
const token = readFileSync(options["token-file"], "utf8").trim();
const lab = await Lab.begin({ browser, url: options.url, token, out: options.out });
let failed = 0;
for (const name of positionals.length > 0 ? positionals : Object.keys(flows)) {
  const begun = Date.now();
  const took = () => `${((Date.now() - begun) / 1000).toFixed(1)} s`;
  try {
    await flows[name].run(lab);
    lab.checkMistakes();
    console.log(`ok ${name} (${took()})`);
  } catch (error) {
    if (error instanceof Skipped) console.log(`skipped: ${name}: ${error.message}`);
    else {
      failed += 1;
      await lab.shotOfFailure(name);
      console.log(`FAILED ${name} (${took()}): ${error.stack ?? error}`);
    }
  } finally {
    await lab.closePages();
  }
}
await lab.end();
await browser.close();
console.log(failed === 0 ? "all flows are well" : `${failed} failed`);
process.exit(failed === 0 ? 0 : 1);
