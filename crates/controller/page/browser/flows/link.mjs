// A connection that is lost, and comes back.
import assert from "node:assert/strict";

export const flows = {
  "events-lost": {
    about: "a lost connection is told quietly, and events that were missed come once it is back",
    async run(lab) {
      const page = await lab.open("#/hosts");
      const host = await lab.first(page, "/hosts?limit=500");
      assert.ok(host, "there is no host");
      await page.getByRole("grid").getByRole("link", { name: host.name, exact: true }).waitFor();
      const ids = [];
      page.on("request", (request) => {
        if (request.url().endsWith("/api/v1/events")) ids.push(request.headers()["last-event-id"]);
      });
      const before = (await lab.api(page, "GET", `/hosts/${host.name}`)).value.settings;
      // Somebody else changes something, so that there is an id to go on from.
      const set = (group) => lab.outside("PUT", `/hosts/${host.name}/settings`, { ...before, group });
      await set("page-test-1");
      await page.waitForTimeout(1500);
      lab.wire.cut();
      await page.getByText("No connection to the controller").waitFor();
      await lab.axe(page, "a lost connection");
      await lab.shot(page, "connection-lost");
      await set("page-test-2");
      await lab.go(page, "#/operations");
      lab.wire.mend();
      await page.getByRole("button", { name: "Try now" }).click();
      await page.getByText("No connection to the controller").waitFor({ state: "detached" });
      assert.ok(
        ids.some((id) => id !== undefined && /^\d+\.\d+$/.test(id)),
        `no Last-Event-ID was sent: ${ids}`,
      );
      await lab.go(page, `#/hosts/${host.name}`);
      await page.locator(".states").getByText("page-test-2").waitFor();
      await lab.outside("PUT", `/hosts/${host.name}/settings`, before);
    },
  },
  "request-lost": {
    about: "what is asked for without a connection is told where it was asked, and can be asked again",
    async run(lab) {
      const page = await lab.open("#/optimize");
      await page.getByRole("button", { name: "Look", exact: true }).waitFor();
      await page.waitForTimeout(500);
      lab.wire.cut();
      await page.getByRole("button", { name: "Look", exact: true }).click();
      await page.getByText("The controller does not answer.").waitFor();
      lab.wire.mend();
      await page.getByRole("button", { name: "Look", exact: true }).click();
      await page
        .getByText(/Nothing would be moved|Make all moves/)
        .first()
        .waitFor();
    },
  },
};
