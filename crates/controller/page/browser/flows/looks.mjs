// How each screen looks and reads: axe, dark and light, narrow and wide, by keys alone.
import assert from "node:assert/strict";

/** All screens by their addresses; names of things are those that the cluster has. */
async function screens(lab, page) {
  const host = await lab.first(page, "/hosts?limit=1");
  const guest = await lab.first(page, "/vms?limit=1");
  const operation = await lab.first(page, "/operations?limit=1");
  const migration = await lab.first(page, "/migrations?limit=1");
  return [
    ["overview", "#/"],
    ["hosts", "#/hosts"],
    ["guests", "#/guests"],
    ["migrations", "#/migrations"],
    ["operations", "#/operations"],
    ["optimize", "#/optimize"],
    ["update", "#/update"],
    ["rules", "#/rules"],
    ["settings", "#/settings"],
    ["access", "#/access"],
    ["audit", "#/audit"],
    ["nothing-here", "#/nowhere"],
    ...(host ? [["host", `#/hosts/${host.name}`]] : []),
    ...(guest
      ? [
          ["guest", `#/guests/${guest.name}`],
          ["console-guest", `#/guests/${guest.name}/console`],
          ["explain-guest", `#/guests/${guest.name}/explain`],
        ]
      : []),
    ...(operation ? [["operation", `#/operations/${operation.id}`]] : []),
    ...(migration ? [["migration", `#/migrations/${migration.id}`]] : []),
  ];
}

async function lookAtAll(lab, { scheme, width, height, name }) {
  const page = await lab.open("#/", { scheme, width, height });
  const found = [];
  const note = (error) => found.push(error.message);
  for (const [what, route] of await screens(lab, page)) {
    await lab.go(page, route);
    await page.locator("main h1").waitFor();
    // What is read first is there, or is told to be missing.
    await page.waitForTimeout(1200);
    await lab.fits(page, what).catch(note);
    await lab.axe(page, `${what}, ${name}`).catch(note);
    await lab.shot(page, `${name}-${what}`);
  }
  assert.equal(found.length, 0, found.join("\n"));
}

export const flows = {
  dark: {
    about: "each screen in the dark: axe finds nothing",
    run: (lab) => lookAtAll(lab, { scheme: "dark", width: 1280, height: 800, name: "dark" }),
  },
  light: {
    about: "each screen in the light: axe finds nothing",
    run: (lab) => lookAtAll(lab, { scheme: "light", width: 1280, height: 800, name: "light" }),
  },
  narrow: {
    about: "each screen at 360 px: nothing is wider, axe finds nothing",
    run: (lab) => lookAtAll(lab, { scheme: "light", width: 360, height: 780, name: "narrow" }),
  },
  theme: {
    about: "the choice of colours is kept",
    async run(lab) {
      const page = await lab.open("#/", { scheme: "dark" });
      const ground = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
      const dark = await ground();
      await page.getByLabel("Colours").selectOption("light");
      assert.notEqual(await ground(), dark);
      await page.reload();
      await page.locator("main#main").waitFor();
      assert.notEqual(await ground(), dark);
      await page.getByLabel("Colours").selectOption("system");
      assert.equal(await ground(), dark);
    },
  },
  keys: {
    about: "by keys alone: sign in, places, search, a list's rows, a question and out of it",
    async run(lab) {
      const page = await lab.open("#/", { token: null, motion: "reduce" });
      // The field has the focus already.
      await page.waitForFunction(() => document.activeElement?.tagName === "INPUT");
      await page.keyboard.type(lab.token);
      await page.keyboard.press("Enter");
      await page.locator("main#main").waitFor();
      await page.keyboard.press("?");
      await page.getByRole("dialog").getByText("these keys").waitFor();
      await lab.axe(page, "the keys");
      await lab.shot(page, "keys");
      await page.keyboard.press("Escape");
      await page.getByRole("dialog").waitFor({ state: "detached" });
      for (const [key, title] of [
        ["h", "Hosts"],
        ["m", "Migrations"],
        ["p", "Operations"],
        ["r", "Rules"],
        ["s", "Settings"],
        ["v", "Guests"],
      ]) {
        await page.keyboard.press("g");
        await page.keyboard.press(key);
        await page.getByRole("heading", { level: 1, name: title }).waitFor();
      }
      await page.getByRole("grid").getByRole("link").first().waitFor();
      await page.keyboard.press("j");
      await page.keyboard.press("ArrowDown");
      await page.keyboard.press("Home");
      const chosen = await page.locator("[role=row][aria-selected=true] a.name").first().textContent();
      const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
      assert.notEqual(outline, "none", "the focus is not seen");
      await page.keyboard.press("Enter");
      await page.getByRole("heading", { level: 1, name: chosen }).waitFor();
      const migrate = page.getByRole("button", { name: "Migrate …" });
      for (let tab = 0; tab < 40; tab += 1) {
        if (await migrate.evaluate((of) => of === document.activeElement)) break;
        await page.keyboard.press("Tab");
      }
      assert.ok(await migrate.evaluate((of) => of === document.activeElement), "Tab does not lead to Migrate");
      await page.keyboard.press("Enter");
      await page.getByRole("dialog").waitFor();
      await page.keyboard.press("Escape");
      await page.getByRole("dialog").waitFor({ state: "detached" });
      assert.ok(await migrate.evaluate((of) => of === document.activeElement), "the focus does not come back");
    },
  },
};
