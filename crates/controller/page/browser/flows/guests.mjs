// Guests and their migrations.
import assert from "node:assert/strict";
import { Skipped } from "../lab.mjs";

async function movable(lab, page) {
  const guest = await lab.first(
    page,
    "/vms?limit=500",
    (of) => of.state === "running" && !of.migration && !of.operation,
  );
  if (!guest) throw new Skipped("no guest runs");
  return guest.name;
}

export const flows = {
  guests: {
    about: "guests are filtered by state and host; a row opens a guest",
    async run(lab) {
      const page = await lab.open("#/guests");
      const name = await movable(lab, page);
      await page.getByLabel("State of guests").selectOption("running");
      await page.getByLabel(/^Search guests/).fill(name);
      await page.getByRole("grid").getByRole("link", { name, exact: true }).click();
      await page.getByRole("heading", { level: 1, name }).waitFor();
      for (const title of ["Facts", "Load", "Settings", "Definition"]) {
        await page.getByRole("heading", { level: 2, name: title, exact: true }).waitFor();
      }
    },
  },
  definition: {
    about: "a guest's definition is shown as its host has it",
    async run(lab) {
      const page = await lab.open("#/");
      const name = await movable(lab, page);
      await lab.go(page, `#/guests/${name}`);
      await page.getByRole("button", { name: "Show it" }).click();
      await page.locator("pre").or(page.getByRole("alert")).first().waitFor();
      assert.equal(await page.getByRole("alert").count(), 0, "the definition was refused");
    },
  },
  "guest-settings": {
    about: "what is set of a guest is changed, is refused if somebody else changed it, and is put back",
    async run(lab) {
      const page = await lab.open("#/");
      const name = await movable(lab, page);
      const before = (await lab.api(page, "GET", `/vms/${name}`)).value.settings;
      await lab.go(page, `#/guests/${name}`);
      const tags = page.getByLabel("Tags");
      await tags.fill("page-test, web");
      await page.getByRole("button", { name: "Save" }).click();
      await page.getByText(`The settings of ${name} are saved`).waitFor();
      assert.deepEqual((await lab.api(page, "GET", `/vms/${name}`)).value.settings.tags, ["page-test", "web"]);
      await page.waitForTimeout(500);
      await tags.fill("mine");
      await lab.api(page, "PUT", `/vms/${name}/settings`, { ...before, tags: ["theirs"] });
      await page.getByRole("button", { name: "Save" }).click();
      await page.getByText("Somebody has changed it").waitFor();
      await lab.shot(page, "settings-changed");
      await page.getByRole("button", { name: "Read it again" }).click();
      await page.waitForFunction(() => [...document.querySelectorAll("input")].some((of) => of.value === "theirs"));
      await lab.api(page, "PUT", `/vms/${name}/settings`, before);
    },
  },
  migrate: {
    about: "a migration is shown before it begins, then followed to its end, and read from its record",
    async run(lab) {
      const page = await lab.open("#/");
      const name = await movable(lab, page);
      await lab.go(page, `#/guests/${name}`);
      await page.getByRole("button", { name: "Migrate …" }).click();
      const dialog = page.getByRole("dialog");
      await dialog.locator(".plan-summary").or(dialog.getByRole("alert")).first().waitFor();
      await lab.axe(page, "the plan of a migration");
      await lab.shot(page, "migrate-plan");
      if ((await dialog.locator(".plan tbody tr").count()) === 0) throw new Skipped("no host takes the guest");
      await dialog.getByRole("button", { name: "Migrate", exact: true }).click();
      await page.getByRole("heading", { level: 1, name: `Move ${name}` }).waitFor();
      const link = page.locator(".plan tbody a[href^='#/migrations/']");
      await link
        .or(page.locator(".states").getByText(/done|failed/))
        .first()
        .waitFor();
      if ((await link.count()) === 0) {
        const id = new URL(page.url()).hash.split("/").at(-1);
        const { value } = await lab.api(page, "GET", `/operations/${id}`);
        const why = [value.message, ...value.moves.map((move) => move.detail)].filter(Boolean).join("; ");
        throw new Skipped(`it is ${value.state} and has no migration: ${why}`);
      }
      await link.first().click();
      await page.getByRole("heading", { level: 1, name: /Migration/ }).waitFor();
      await page.locator(".how-far, .untold").or(page.getByRole("alert")).first().waitFor();
      assert.equal(await page.getByRole("alert").count(), 0, "the record was refused");
      if ((await page.locator(".untold").count()) > 0) {
        await lab.axe(page, "a migration that no host tells of");
        await lab.shot(page, "migration-untold");
        throw new Skipped("the hosts do not tell of their migrations: they are simulated");
      }
      await lab.axe(page, "a migration under way");
      await lab.shot(page, "migration-live");
      await page
        .locator(".how-far .left")
        .getByText(/The guest (runs|stays|ended)/)
        .waitFor({ timeout: 180_000 });
      await page.waitForTimeout(1000);
      await lab.axe(page, "a migration's record");
      await lab.shot(page, "migration-over");
    },
  },
  "migration-anew": {
    about: "a migration that copies begins again to be held, is followed to the next one, and called off there",
    async run(lab) {
      const page = await lab.open("#/guests");
      const guest = await lab.first(page, "/vms?limit=500", (of) => of.state === "running" && !of.migration);
      if (!guest) throw new Skipped("no guest is at rest");
      const begun = await lab.api(page, "POST", `/vms/${guest.name}/migrate`, { rate_bits_per_s: 8_000_000 });
      if (begun.status >= 300) throw new Skipped(`it is not moved: ${begun.value.detail}`);
      const moving = async (not) => {
        for (let times = 0; times < 240; times += 1) {
          const of = (await lab.api(page, "GET", `/vms/${guest.name}`)).value.migration;
          if (of && of.id !== not) return of.id;
          await page.waitForTimeout(250);
        }
        throw new Skipped("the hosts tell of no migration");
      };
      const first = await moving();
      await lab.go(page, `#/migrations/${first}`);
      await page.locator(".how-far, .untold").first().waitFor();
      if ((await page.locator(".untold").count()) > 0) throw new Skipped("the hosts are simulated");
      await page.getByRole("button", { name: "Allow throttling …" }).click();
      await page.getByLabel("Per cent of its CPUs' time at most").fill("100");
      await page.getByText("A whole number of per cent, 1 to 99").waitFor();
      await lab.axe(page, "the question of throttling");
      await page.getByRole("button", { name: "Leave it" }).click();
      await page.getByRole("button", { name: "Hold …" }).click();
      await page.getByRole("button", { name: "Begin again, and hold it" }).click();
      await page.getByText("begins again, and is held").first().waitFor();
      const link = page.getByRole("status").getByRole("link");
      await link.waitFor({ timeout: 60_000 });
      await link.click();
      await page.getByRole("button", { name: "Switch …" }).waitFor({ timeout: 60_000 });
      await page.getByRole("button", { name: "Call off …" }).click();
      await page.getByRole("button", { name: "Call it off", exact: true }).click();
      await page.locator(".how-far .left").getByText("The guest stays").waitFor({ timeout: 60_000 });
    },
  },
  "migration-live": {
    about: "a migration that is under way, if one is: rates, phases, what is left",
    async run(lab) {
      const page = await lab.open("#/migrations");
      const of = await lab.first(page, "/migrations?limit=500", (one) => !one.outcome);
      if (!of) throw new Skipped("no migration is under way");
      await lab.go(page, `#/migrations/${of.id}`);
      await page.locator(".how-far, .untold").waitFor();
      await page.waitForTimeout(3000);
      await lab.axe(page, "a migration under way");
      await lab.shot(page, "migration-under-way");
    },
  },
  "migration-pair": {
    about: "two migrations side by side, if there are two",
    async run(lab) {
      const page = await lab.open("#/migrations");
      const { value } = await lab.api(page, "GET", "/migrations?limit=500");
      const [first, second] = value.items;
      if (!second) throw new Skipped("there are no two migrations");
      await lab.go(page, `#/migrations/${first.id}/${second.id}`);
      const sides = page.locator(".pair .how-far, .pair .untold");
      await sides.nth(1).waitFor();
      await lab.axe(page, "two migrations");
      await lab.shot(page, "migration-pair");
    },
  },
};
