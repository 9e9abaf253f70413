// Signing in and out, roles, tokens that end.
import assert from "node:assert/strict";

const name = () => `page-test-${Date.now().toString(36)}`;

export const flows = {
  "sign-in": {
    about: "a wrong token is refused in words, a right one leads to where one was going",
    async run(lab) {
      const page = await lab.open("#/rules", { token: null });
      await page.getByLabel("Token").fill("wrong");
      await page.keyboard.press("Enter");
      await page.getByRole("alert").waitFor();
      await lab.axe(page, "sign in");
      await lab.shot(page, "sign-in");
      await lab.signIn(page);
      await page.getByRole("heading", { level: 1, name: "Rules" }).waitFor();
      assert.equal(new URL(page.url()).hash, "#/rules");
    },
  },
  "sign-out": {
    about: "nothing is shown afterwards, also not after a reload; without a controller nobody is said to be out",
    async run(lab) {
      const page = await lab.open("#/hosts");
      try {
        lab.wire.cut();
        await page.getByRole("button", { name: "Sign out" }).click();
        await page.getByText("You are still signed in").waitFor();
        assert.equal(await page.getByLabel("Token").count(), 0);
      } finally {
        lab.wire.mend();
      }
      await page.getByRole("button", { name: "Sign out" }).click();
      await page.getByLabel("Token").waitFor();
      await page.reload();
      await page.getByLabel("Token").waitFor();
      assert.equal((await lab.api(page, "GET", "/hosts")).status, 401);
    },
  },
  viewer: {
    about: "who may only look is offered nothing else, and is told why",
    async run(lab) {
      const admin = await lab.open("#/access");
      const token = name();
      const made = await lab.api(admin, "POST", "/tokens", { name: token, role: "viewer", expires_s: 600 });
      assert.equal(made.status, 201);
      try {
        const host = await lab.first(admin, "/hosts?limit=500", (of) => of.contact === "online");
        const page = await lab.open(`#/hosts/${host.name}`, { token: made.value.secret });
        const drain = page.getByRole("button", { name: "Drain …" });
        await drain.waitFor();
        assert.equal(await drain.getAttribute("aria-disabled"), "true");
        assert.match((await drain.getAttribute("title")) ?? "", /operator/);
        await drain.click({ force: true });
        assert.equal(await page.locator("dialog[open]").count(), 0);
        await lab.sees(page, "You are signed in as viewer");
        assert.equal(await page.getByRole("link", { name: "Audit log" }).count(), 0);
        await lab.axe(page, "a host, as viewer");
        await lab.shot(page, "host-viewer");
      } finally {
        await lab.api(admin, "DELETE", `/tokens/${token}`);
      }
    },
  },
  "expired-token": {
    about: "a token that ends asks again, and leads back to the same place",
    async run(lab) {
      const admin = await lab.open("#/");
      const token = name();
      const made = await lab.api(admin, "POST", "/tokens", { name: token, role: "viewer", expires_s: 6 });
      assert.equal(made.status, 201);
      const page = await lab.open("#/guests?state=running", { token: made.value.secret });
      await page.getByRole("heading", { level: 1, name: "Guests" }).waitFor();
      await page.getByText("The token has ended").waitFor();
      await lab.axe(page, "a token that has ended");
      await lab.shot(page, "expired");
      await lab.signIn(page);
      await page.getByRole("heading", { level: 1, name: "Guests" }).waitFor();
      assert.equal(new URL(page.url()).hash, "#/guests?state=running");
      await lab.api(admin, "DELETE", `/tokens/${token}`);
    },
  },
};
