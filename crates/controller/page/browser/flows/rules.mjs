// Rules, explanations, settings of the cluster.
import assert from "node:assert/strict";
import { Skipped } from "../lab.mjs";

export const flows = {
  rules: {
    about: "a rule is added, told as broken, edited, and removed",
    async run(lab) {
      const page = await lab.open("#/rules");
      const name = `page-test-${Date.now().toString(36)}`;
      await page.getByRole("button", { name: "Add a rule …" }).click();
      const dialog = page.getByRole("dialog");
      await dialog.getByLabel("Name").fill(name);
      await dialog.getByLabel("Rule, as JSON").fill("{");
      assert.ok(await dialog.getByRole("button", { name: "Add" }).isDisabled());
      await dialog.getByLabel("Kind").selectOption("together");
      await dialog.getByLabel("Rule, as JSON").fill('{"together": {"of": {"tag": "page-test"}, "force": "soft"}}');
      await lab.axe(page, "a new rule");
      await lab.shot(page, "rule-new");
      await dialog.getByRole("button", { name: "Add" }).click();
      const row = page.getByRole("row").filter({ hasText: name });
      await row.waitFor();
      await row.getByRole("button", { name: "Edit …" }).click();
      const edit = page.getByRole("dialog");
      await edit.getByLabel("Rule, as JSON").fill('{"together": {"of": {"tag": "page-test"}, "force": "hard"}}');
      await edit.getByRole("button", { name: "Save" }).click();
      await row.getByText("tag page-test; hard").waitFor();
      await row.getByRole("button", { name: "Remove …" }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
      await row.waitFor({ state: "detached" });
    },
  },
  "rule-refused": {
    about: "a rule that placement cannot use is refused in words, where it was written",
    async run(lab) {
      const page = await lab.open("#/rules");
      await page.getByRole("button", { name: "Add a rule …" }).click();
      const dialog = page.getByRole("dialog");
      await dialog.getByLabel("Name").fill("page-test-wrong");
      await dialog.getByLabel("Rule, as JSON").fill('{"apart": {"off": {"tag": "x"}}}');
      await dialog.getByRole("button", { name: "Add" }).click();
      await dialog.getByRole("alert").waitFor();
      await lab.shot(page, "rule-refused");
    },
  },
  explain: {
    about: "every reason against every host, as a matrix",
    async run(lab) {
      const page = await lab.open("#/rules");
      const guest = await lab.first(page, "/vms?limit=500", (of) => of.state === "running");
      if (!guest) throw new Skipped("no guest runs");
      await page.getByRole("combobox", { name: "Guest" }).fill(guest.name);
      await page.keyboard.press("Enter");
      await page.getByRole("heading", { level: 1, name: guest.name }).waitFor();
      await page.locator("table.matrix tbody tr").first().waitFor();
      await lab.axe(page, "an explanation");
      await lab.shot(page, "explain");
    },
  },
  settings: {
    about: "settings of the cluster are changed and put back",
    async run(lab) {
      const page = await lab.open("#/settings");
      const before = (await lab.api(page, "GET", "/settings")).value;
      const field = page.getByLabel("At once in the cluster");
      await field.fill(String(before.migrations_max + 1));
      await page.getByRole("button", { name: "Save" }).click();
      await page.getByText("The settings are saved").waitFor();
      assert.equal((await lab.api(page, "GET", "/settings")).value.migrations_max, before.migrations_max + 1);
      await lab.api(page, "PUT", "/settings", before);
    },
  },
};
