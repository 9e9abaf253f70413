// Makes the pictures of docs/tour.md from the controller's page, in a real browser:
//
//   node scripts/book/pictures.mjs --url https://10.0.0.9:7443 --token-file admin.token [--out docs/pictures] [NAME ...]
//
// The token is an admin's, and the cluster a lab's: for one picture a rule is added and taken away again. A picture is
// left out, which is told, if the cluster has nothing to show: no migration under way, no host that is lost. Needs
// what crates/controller/page has (npm ci there), and Chromium (--chromium PATH).
import { mkdirSync, readFileSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { parseArgs } from "node:util";

const page_package = new URL("../../crates/controller/page/package.json", import.meta.url);
const { chromium } = createRequire(page_package)("playwright-core");
const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    url: { type: "string" }, "token-file": { type: "string" },
    out: { type: "string", default: "docs/pictures" }, chromium: { type: "string", default: "/usr/bin/chromium" },
  },
});
/** What a page of the book may weigh. */
const BYTES_MAX = 200_000;
const RULE = "not-one-host";

/** Asks the API as the page does, with its cookie. */
async function ask(page, method, path, body) {
  return page.evaluate(async ([method, path, body]) => {
    const headers = { "x-skein-page": "1", ...(body ? { "content-type": "application/json" } : {}) };
    const answer = await fetch(`/api/v1${path}`, { method, headers, ...(body ? { body: JSON.stringify(body) } : {}) });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return text === "" ? undefined : JSON.parse(text);
  }, [method, path, body]);
}

async function go(page, route) {
  await page.evaluate((hash) => {
    location.hash = hash;
  }, route);
  await page.locator("main h1").waitFor();
  await page.waitForTimeout(1500);
}

const items = async (page, path) => (await ask(page, "GET", path)).items;
const online = async (page) => (await items(page, "/hosts?limit=500"))
  .find((of) => of.contact === "online" && of.mode === "active" && of.vms_running > 2);
const guests = async (page, host) => (await items(page, `/vms?limit=500&host=${host.name}`))
  .filter((of) => of.state === "running" && !of.operation);
const migrations = (page) => items(page, "/migrations?limit=500");

/** Has three guests of one host kept apart, as long as `during` takes. */
async function withRule(page, during) {
  const host = await online(page);
  if (!host) return "no host has three guests";
  const names = (await guests(page, host)).slice(0, 3).map((of) => of.name);
  await ask(page, "PUT", `/rules/${RULE}`, { apart: { of: { guests: names }, force: "hard" } });
  try {
    return await during(names[0]);
  } finally {
    await ask(page, "DELETE", `/rules/${RULE}`);
  }
}

/** Each goes to what it shows; what is returned says why there is nothing. */
const pictures = {
  overview: (page) => go(page, "#/"),
  async host(page) {
    const host = await online(page);
    return host ? go(page, `#/hosts/${host.name}`) : "no host is online";
  },
  async guest(page) {
    const host = await online(page);
    return host ? go(page, `#/guests/${(await guests(page, host))[0].name}`) : "no guest runs";
  },
  async migration(page) {
    // One that has gone on for a while, and goes on.
    for (let tries = 0; tries < 120; tries += 1) {
      const of = (await migrations(page)).find((one) => !one.outcome);
      const elapsed_ms = of ? Date.now() - Date.parse(of.begun) : 0;
      if (elapsed_ms > 20_000 && elapsed_ms < 30_000) {
        await go(page, `#/migrations/${of.id}`);
        await page.locator(".how-far").waitFor();
        return page.waitForTimeout(3000);
      }
      await page.waitForTimeout(1000);
    }
    return "no migration was under way for 20 s";
  },
  async "two-migrations"(page) {
    const [first, second] = (await migrations(page)).filter((one) => one.outcome === "moved");
    if (!second) return "no two migrations are over";
    await go(page, `#/migrations/${first.id}/${second.id}`);
    await page.locator(".pair .how-far").nth(1).waitFor();
    await page.waitForTimeout(1500);
  },
  async drain(page) {
    const host = await online(page);
    if (!host) return "no host is online";
    await go(page, `#/hosts/${host.name}`);
    await page.getByRole("button", { name: "Drain …" }).click();
    await page.getByRole("dialog").locator(".plan-summary").waitFor();
  },
  optimize: (page) => withRule(page, async () => {
    await go(page, "#/optimize");
    await page.getByRole("button", { name: "Look", exact: true }).click();
    await page.getByRole("group", { name: "Moves that would be made" }).waitFor();
    await shoot(page, "optimize");
    return "taken";
  }),
  rules: (page) => withRule(page, async () => {
    await go(page, "#/rules");
    await page.getByText("must not be").first().waitFor();
    await shoot(page, "rules");
    return "taken";
  }),
  explain: (page) => withRule(page, async (name) => {
    await go(page, `#/guests/${name}/explain`);
    await page.getByRole("group", { name: "Hosts and reasons" }).waitFor();
    await shoot(page, "explain");
    return "taken";
  }),
  async attention(page) {
    const lost = (await items(page, "/hosts?limit=500")).find((of) => of.contact === "lost");
    if (!lost) return "no host is lost";
    await go(page, "#/");
    await page.getByRole("button", { name: "It is off …" }).first().waitFor();
  },
  narrow: (page) => go(page, "#/"),
  dark: (page) => go(page, "#/hosts"),
};
const looks = {
  narrow: { viewport: { width: 390, height: 844 } },
  dark: { colorScheme: "dark" },
  migration: { viewport: { width: 1280, height: 1180 } },
  "two-migrations": { viewport: { width: 1280, height: 1180 } },
};

async function shoot(page, name) {
  const path = join(options.out, `${name}.png`);
  await page.screenshot({ path });
  const { size } = statSync(path);
  console.log(`${path}: ${Math.ceil(size / 1000)} kB${size > BYTES_MAX ? ", which is too much" : ""}`);
}

mkdirSync(options.out, { recursive: true });
const token = readFileSync(options["token-file"], "utf8").trim();
const browser = await chromium.launch({ executablePath: options.chromium, args: ["--no-sandbox"] });
for (const name of positionals.length > 0 ? positionals : Object.keys(pictures)) {
  const context = await browser.newContext({
    ignoreHTTPSErrors: true, viewport: { width: 1280, height: 860 }, colorScheme: "light", locale: "en-GB",
    reducedMotion: "reduce", ...looks[name],
  });
  const page = await context.newPage();
  await page.goto(`${options.url}/`);
  await page.getByLabel("Token").fill(token);
  await page.keyboard.press("Enter");
  await page.locator("main#main").waitFor();
  await page.waitForTimeout(2000);
  const why = await pictures[name](page);
  if (!why) await shoot(page, name);
  else if (why !== "taken") console.log(`${name}: left out: ${why}`);
  await context.close();
}
await browser.close();
