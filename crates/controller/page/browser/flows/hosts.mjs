// The overview, hosts, drains.
import assert from "node:assert/strict";
import { Skipped } from "../lab.mjs";

async function drainable(lab, page) {
  const host = await lab.first(
    page,
    "/hosts?limit=500",
    (of) => of.contact === "online" && of.mode === "active" && of.vms_running > 0,
  );
  if (!host) throw new Skipped("no host is online and has guests");
  return host.name;
}

export const flows = {
  overview: {
    about: "the overview shows hosts, totals and what goes on",
    async run(lab) {
      const page = await lab.open("#/");
      await page.getByRole("grid", { name: "Hosts" }).getByRole("link").first().waitFor();
      for (const title of ["Under way", "Broken rules", "Changed last"]) {
        await page.getByRole("heading", { name: title }).waitFor();
      }
    },
  },
  hosts: {
    about: "hosts are searched and filtered, and the address keeps that",
    async run(lab) {
      const page = await lab.open("#/hosts");
      const host = await lab.first(page, "/hosts?limit=1");
      if (!host) throw new Skipped("there is no host");
      await page.keyboard.press("/");
      await page.keyboard.type(host.name);
      await page.getByRole("grid").getByRole("link", { name: host.name, exact: true }).waitFor();
      assert.match(page.url(), new RegExp(`q=${host.name}`));
      await page.reload();
      await page.getByRole("grid").getByRole("link", { name: host.name, exact: true }).click();
      await page.getByRole("heading", { level: 1, name: host.name }).waitFor();
      for (const title of ["Facts", "NICs", "Load", "Guests", "Power and fencing", "Settings"]) {
        await page.getByRole("heading", { level: 2, name: title, exact: true }).waitFor();
      }
    },
  },
  "wrong-field": {
    about: "a form with a field that says it is wrong is not sent",
    async run(lab) {
      const page = await lab.open("#/hosts");
      const host = await lab.first(page, "/hosts?limit=1");
      if (!host) throw new Skipped("there is no host");
      await lab.go(page, `#/hosts/${host.name}`);
      const areas = page.getByLabel("Areas");
      const save = page.locator("form", { has: areas }).getByRole("button", { name: "Save" });
      const before = await areas.inputValue();
      let sent = 0;
      page.on("request", (request) => (sent += request.method() === "PUT" ? 1 : 0));
      const saved = async (text) => {
        await areas.fill(text);
        const read = page.waitForResponse((of) => of.request().method() === "GET" && of.url().endsWith(host.name));
        await save.click();
        await read;
      };
      await saved("rack=r1");
      await areas.fill("rack\nsite=b");
      await save.click();
      assert.equal(await areas.evaluate((field) => field.checkValidity()), false);
      await page.reload();
      assert.equal(sent, 1, "what was wrong was sent");
      assert.equal(await areas.inputValue(), "rack=r1");
      await saved(before);
    },
  },
  drain: {
    about: "a drain is shown before it begins, goes on as one thing, and is called off; the host takes guests again",
    async run(lab) {
      const page = await lab.open("#/");
      const name = await drainable(lab, page);
      await lab.go(page, `#/hosts/${name}`);
      await page.getByRole("button", { name: "Drain …" }).click();
      const dialog = page.getByRole("dialog");
      await dialog.locator(".plan-summary").waitFor();
      await lab.axe(page, "the plan of a drain");
      await lab.shot(page, "drain-plan");
      await dialog.getByRole("button", { name: /^Drain/ }).click();
      await page.getByRole("heading", { level: 1, name: `Drain ${name}` }).waitFor();
      await page.getByRole("progressbar").waitFor();
      await lab.axe(page, "a drain");
      await lab.shot(page, "drain");
      try {
        await page.getByRole("button", { name: "Call off …" }).click({ timeout: 5000 });
        await page.getByRole("dialog").getByRole("button", { name: "Call it off" }).click();
        await page
          .locator(".states")
          .getByText(/called off|done|failed/)
          .first()
          .waitFor();
      } catch (error) {
        // A small drain may be done before.
        if (
          (await page
            .locator(".states")
            .getByText(/done|failed/)
            .count()) === 0
        )
          throw error;
      }
      await lab.shot(page, "drain-over");
      await lab.go(page, `#/hosts/${name}`);
      // A drain that was called off lets the host take guests again by itself, in a moment.
      const mode = async () => (await lab.api(page, "GET", `/hosts/${name}`)).value.mode;
      for (let tries = 0; tries < 20 && (await mode()) !== "active"; tries += 1) await page.waitForTimeout(500);
      const drain = page.getByRole("button", { name: "Drain …" });
      if ((await mode()) !== "active") {
        await page.getByRole("button", { name: "Resume …" }).click();
        await page.getByRole("dialog").getByRole("button", { name: "Resume" }).click();
        await page.getByRole("dialog").waitFor({ state: "detached" });
      }
      await drain.waitFor();
    },
  },
  "lost-host": {
    about: "that a lost host is off is only said after a second question, by typing its name; it is not said here",
    async run(lab) {
      const page = await lab.open("#/");
      const host = await lab.first(page, "/hosts?limit=500", (of) => of.contact === "lost");
      if (!host) throw new Skipped("no host is lost");
      await page.getByText("Needs attention").waitFor();
      await lab.shot(page, "lost-overview");
      await lab.go(page, `#/hosts/${host.name}`);
      await page.getByRole("button", { name: "It is off …" }).click();
      const dialog = page.getByRole("dialog");
      const say = dialog.getByRole("button", { name: `I say that ${host.name} is off` });
      assert.ok(await say.isDisabled());
      await dialog.getByRole("checkbox").check();
      assert.ok(await say.isDisabled());
      await dialog.getByLabel(/^Type/).fill(`${host.name}x`);
      assert.ok(await say.isDisabled());
      await dialog.getByLabel(/^Type/).fill(host.name);
      assert.ok(await say.isEnabled());
      await lab.axe(page, "the question whether a host is off");
      await lab.shot(page, "lost-question");
      await page.keyboard.press("Escape");
      await dialog.waitFor({ state: "detached" });
      assert.equal((await lab.api(page, "GET", `/hosts/${host.name}`)).value.contact, "lost");
    },
  },
  optimize: {
    about: "what would be moved is shown, with its cost, and moves nothing",
    async run(lab) {
      const page = await lab.open("#/optimize");
      await page.getByRole("button", { name: "Look", exact: true }).click();
      await page
        .getByText(/Nothing would be moved|Make all moves/)
        .first()
        .waitFor();
      await lab.axe(page, "a proposal");
      await lab.shot(page, "optimize-proposal");
    },
  },
  update: {
    about: "what an update of hosts would do is shown, and begins nothing",
    async run(lab) {
      const page = await lab.open("#/update");
      await page.getByLabel("How").selectOption("manual");
      await page.getByRole("button", { name: "Look what would be done" }).click();
      await page.getByRole("heading", { name: "What would be done" }).or(page.getByRole("alert")).first().waitFor();
      await lab.axe(page, "the plan of an update");
      await lab.shot(page, "update-plan");
    },
  },
};
