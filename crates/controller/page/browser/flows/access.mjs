// Tokens, tickets, the audit log.
import assert from "node:assert/strict";

export const flows = {
  tokens: {
    about: "a token is made, shown once, and taken away",
    async run(lab) {
      const page = await lab.open("#/access");
      const name = `page-test-${Date.now().toString(36)}`;
      await page.getByRole("button", { name: "Make one …" }).click();
      const dialog = page.getByRole("dialog");
      await dialog.getByLabel("Name").fill(name);
      await dialog.getByLabel("Role").selectOption("operator");
      await dialog.getByRole("button", { name: "Make it" }).click();
      await page.getByText("It is shown this once").waitFor();
      const secret = await page.getByRole("dialog").locator("pre").textContent();
      assert.ok((secret ?? "").length > 20);
      await lab.axe(page, "a new token");
      await page.getByRole("button", { name: "I have it" }).click();
      const row = page.getByRole("row").filter({ hasText: name });
      await row.getByRole("button", { name: "Take away …" }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Take it away" }).click();
      await row.waitFor({ state: "detached" });
    },
  },
  tickets: {
    about: "a ticket is made: a command for a host that is to join",
    async run(lab) {
      const page = await lab.open("#/access");
      await page.getByRole("button", { name: "Make a ticket …" }).click();
      await page.getByRole("dialog").getByLabel("Only for the host").fill("page-test-host");
      await page.getByRole("dialog").getByRole("button", { name: "Make it" }).click();
      await page.getByRole("dialog").getByText("skein join").waitFor();
      await lab.axe(page, "a ticket");
    },
  },
  audit: {
    about: "the audit log has what was asked for, the newest first, and is searched",
    async run(lab) {
      const page = await lab.open("#/access");
      const made = await lab.api(page, "POST", "/tokens", { name: "page-test-audit", role: "viewer", expires_s: 60 });
      assert.ok([201, 409].includes(made.status), `a token: ${made.status}`);
      await lab.api(page, "DELETE", "/tokens/page-test-audit");
      await lab.go(page, "#/audit");
      await page.getByLabel(/^Search by who/).fill("page-test-audit");
      await page.getByRole("row").filter({ hasText: "DELETE" }).first().waitFor();
      await lab.axe(page, "the audit log");
    },
  },
};
