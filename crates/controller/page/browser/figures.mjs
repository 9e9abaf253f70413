// Measures the page in a real browser, against a controller that runs already, and prints one line of JSON:
//
//   node browser/figures.mjs open|live|many --url https://10.0.0.9:7443 --token-file admin.token
//     [--minutes 30] [--pid CONTROLLER] [--pages 50] [--chromium PATH]
//
// open: how long a page takes until its first row answers a click; what it takes of a core as events come, and whether
//   its memory grows, over --minutes.
// live: how old the samples are that a migration under way shows, over --minutes.
// many: what --pages pages that show a migration under way cost the controller --pid: what one page asks for within 20 s
//   is asked for as often by as many.
import { readFileSync } from "node:fs";
import { connect } from "node:http2";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import { Lab } from "./lab.mjs";

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    url: { type: "string" },
    "token-file": { type: "string" },
    minutes: { type: "string", default: "1" },
    pid: { type: "string" },
    pages: { type: "string", default: "50" },
    chromium: { type: "string", default: "/usr/bin/chromium" },
  },
});
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const lastsMs = Number(options.minutes) * 60_000;
/** How often what is used is looked at. */
const LOOK_MS = 10_000;
/** For how long it is seen what one page asks for, and how much many take. */
const SEEN_MS = 20_000;

const browser = await chromium.launch({ executablePath: options.chromium, args: ["--no-sandbox"] });
const token = readFileSync(options["token-file"], "utf8").trim();
const lab = await Lab.begin({ browser, url: options.url, token, out: "." });

/** The CPU time that all processes of the browser have taken, in seconds. */
async function browserCpu(root) {
  const { processInfo } = await root.send("SystemInfo.getProcessInfo");
  return processInfo.reduce((sum, one) => sum + one.cpuTime, 0);
}

async function heap(client) {
  await client.send("HeapProfiler.collectGarbage");
  const { usedSize } = await client.send("Runtime.getHeapUsage");
  return usedSize;
}

const quantile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? null;

async function open() {
  const page = await lab.open("#/guests");
  // The first was to sign in: what is measured is a page that is opened anew, with nothing in the browser's memory.
  const opened = [];
  for (let times = 0; times < 5; times += 1) {
    const again = await page.context().newPage();
    const begun = performance.now();
    await again.goto(`${lab.base}/#/guests`, { waitUntil: "commit" });
    await again.locator("[role=row] a[href^='#/guests/'], tbody a[href^='#/guests/']").first().click();
    await again.getByRole("heading", { level: 1 }).getByText(/./).first().waitFor();
    await again.waitForURL(/#\/guests\/./);
    opened.push(performance.now() - begun);
    await again.close();
  }
  await lab.go(page, "#/");
  const client = await page.context().newCDPSession(page);
  const root = await browser.newBrowserCDPSession();
  await sleep(5000);
  const heaps = [await heap(client)];
  const cores = [];
  const end = Date.now() + lastsMs;
  while (Date.now() < end) {
    const [cpu, at] = [await browserCpu(root), performance.now()];
    await sleep(LOOK_MS);
    cores.push(((await browserCpu(root)) - cpu) / ((performance.now() - at) / 1000));
    heaps.push(await heap(client));
  }
  opened.sort((a, b) => a - b);
  cores.sort((a, b) => a - b);
  return { opened_ms: opened, cores: quantile(cores, 0.5), cores_most: cores.at(-1), heap_bytes: heaps };
}

/** Opens the page of a migration that is under way. */
async function liveMigration() {
  const page = await lab.open("#/migrations");
  for (let times = 0; times < 120; times += 1) {
    const of = await lab.first(page, "/migrations?limit=500", (one) => !one.outcome);
    if (of) {
      await lab.go(page, `#/migrations/${of.id}`);
      await page.locator(".how-far").waitFor();
      return { page, id: of.id };
    }
    await sleep(500);
  }
  throw new Error("no migration is under way");
}

async function live() {
  const { page } = await liveMigration();
  await page.evaluate(() => {
    globalThis.skeinAges = [];
    addEventListener("skein-shown", (event) => globalThis.skeinAges.push(Date.now() - event.detail));
  });
  await sleep(lastsMs);
  const ages = await page.evaluate(() => globalThis.skeinAges);
  ages.sort((a, b) => a - b);
  return { samples: ages.length, p50_ms: quantile(ages, 0.5), p95_ms: quantile(ages, 0.95) };
}

/** The CPU time of a process, in seconds. */
function cpuOf(pid) {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

async function coresOf(pid, ms) {
  const [before, at] = [cpuOf(pid), performance.now()];
  await sleep(ms);
  return (cpuOf(pid) - before) / ((performance.now() - at) / 1000);
}

async function many() {
  const asked = [];
  const { page, id } = await liveMigration();
  const begun = performance.now();
  page.on("request", (one) => asked.push({ at: performance.now() - begun, url: one.url() }));
  await page.reload();
  await page.locator(".how-far").waitFor();
  const cookies = await page.context().cookies();
  const alone = await coresOf(options.pid, SEEN_MS);
  await page.goto("about:blank");
  const without = await coresOf(options.pid, SEEN_MS);
  const cookie = cookies.map((one) => `${one.name}=${one.value}`).join("; ");
  let [bytes, failed, isOver] = [0, 0, false];
  const refused = (path, why) => {
    failed += 1;
    // The first of them says enough.
    if (failed <= 3) console.error(`${path}: ${why}`);
  };
  // As a browser does, each asks all by one connection.
  const pages = Array.from({ length: Number(options.pages) }, () => {
    const page = connect(options.url, { rejectUnauthorized: false });
    page.on("error", (error) => isOver || refused("a connection", error.message));
    return page;
  });
  const mine = asked.filter((one) => one.url.includes("/api/v1/"));
  const ask = (page, path) => {
    if (isOver || page.destroyed) return;
    const sent = page.request({ ":path": path, cookie, "x-skein-page": "1" });
    sent.on("response", (answer) => answer[":status"] === 200 || refused(path, answer[":status"]));
    sent.on("data", (data) => (bytes += data.length));
    sent.on("error", (error) => isOver || refused(path, error.message));
    sent.end();
  };
  // Not all at the same moment, as people do.
  pages.forEach((page, number) => {
    for (const one of mine) {
      const path = one.url.slice(one.url.indexOf("/api/v1/"));
      setTimeout(() => ask(page, path), one.at + number * 40);
    }
  });
  await sleep(5000);
  const taken = await coresOf(options.pid, SEEN_MS - 5000);
  isOver = true;
  pages.forEach((page) => page.destroy());
  const { value } = await lab.api(await lab.open("#/"), "GET", `/migrations/${id}`);
  return {
    cores_without: without,
    cores_one: alone,
    cores_many: taken,
    requests: mine.length,
    failed,
    bytes,
    is_over: Boolean(value.source?.migration.outcome),
  };
}

const what = { open, live, many }[positionals[0]];
if (!what || !options.url || !options["token-file"]) {
  console.error("see the head of browser/figures.mjs");
  process.exit(2);
}
console.log(JSON.stringify(await what()));
await lab.closePages();
await browser.close();
process.exit(0);
