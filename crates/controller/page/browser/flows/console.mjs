// A guest's serial console. The flows need a guest that is named so, and writes back what is typed.
import assert from "node:assert/strict";
import { Skipped } from "../lab.mjs";

const NAME = "writes-back";

async function guest(lab, page) {
  const of = await lab.first(page, "/vms?limit=500", (of) => of.name === NAME && of.state === "running");
  if (!of) throw new Skipped(`no guest '${NAME}' runs that writes back what is typed`);
  return of;
}

/** Waits until the terminal shows a text, however its styles cut it. */
async function shows(page, text) {
  await page.waitForFunction(
    (text) => document.querySelector(".terminal-screen")?.textContent.includes(text),
    text,
    { timeout: 60_000 },
  );
}

async function isAtKeyboard(page) {
  await page.waitForFunction(() => document.activeElement?.classList.contains("terminal-keys"));
}

async function opened(lab, page) {
  await lab.go(page, `#/guests/${NAME}/console`);
  // A page of the flow before that was closed all at once has the console for some seconds still.
  const other = page.getByRole("button", { name: "Take it over" });
  const keyboard = page.locator(".terminal-keys:focus");
  await other.or(keyboard).first().waitFor();
  if (await other.isVisible()) {
    await other.click();
    await other.waitFor({ state: "detached" });
    await page.getByLabel(`Keyboard of ${NAME}'s console`).focus();
  }
  await isAtKeyboard(page);
}

export const flows = {
  console: {
    about: "a guest's console is opened by keys, types, pastes, and is left by Ctrl+]",
    async run(lab) {
      const page = await lab.open("#/guests");
      await guest(lab, page);
      await lab.go(page, `#/guests/${NAME}`);
      await page.getByRole("button", { name: "Console", exact: true }).press("Enter");
      await page.getByRole("heading", { level: 1, name: NAME }).waitFor();
      await isAtKeyboard(page);
      await page.keyboard.type("Hello?");
      await shows(page, "Hello?");
      // Keys of the page are the guest's here, and so is Tab.
      await page.keyboard.press("Enter");
      await page.keyboard.type("gh");
      await page.keyboard.press("Tab");
      await page.keyboard.type("x");
      await shows(page, "gh");
      // The guest writes back no line feed, so that this stands over what was typed before.
      await page.waitForFunction(() => /ghllo\?.{2}x/.test(document.querySelector(".terminal-screen").textContent));
      await isAtKeyboard(page);
      await page.evaluate(() => {
        const clipboardData = new DataTransfer();
        clipboardData.setData("text", "pasted \u00fcber");
        const paste = new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true });
        document.querySelector(".terminal-keys").dispatchEvent(paste);
      });
      await shows(page, "pasted \u00fcber");
      await lab.axe(page, "a console");
      await lab.shot(page, "console");
      await page.keyboard.press("Control+]");
      await page.waitForFunction(() => document.activeElement?.textContent === "To the keyboard");
      await page.getByRole("button", { name: "As text" }).click();
      assert.match(await page.getByLabel(`Text of ${NAME}'s console`).textContent(), /pasted über/);
      await lab.axe(page, "a console as text");
      const log = await lab.api(page, "GET", "/audit?limit=500");
      assert.ok(!JSON.stringify(log.value).includes("Hello"), "what is typed is in no log");
    },
  },
  "console-held": {
    about: "who else has a console is told, takes it over, and the other is told",
    async run(lab) {
      const first = await lab.open("#/guests");
      await guest(lab, first);
      await opened(lab, first);
      await first.keyboard.type("first");
      await shows(first, "first");
      const second = await lab.open("#/guests");
      await lab.go(second, `#/guests/${NAME}/console`);
      await second.getByText("has this console").waitFor();
      await lab.axe(second, "a console that somebody else has");
      await lab.shot(second, "console-held");
      await second.getByRole("button", { name: "Take it over" }).click();
      await second.getByText("has this console").waitFor({ state: "detached" });
      await second.getByLabel(`Keyboard of ${NAME}'s console`).focus();
      await second.keyboard.type("second");
      await shows(second, "second");
      await first.getByText("has this console").waitFor();
      // It is let go at once when one goes elsewhere.
      await lab.go(second, "#/");
      // The word of that may be behind what is asked here.
      const again = first.getByRole("button", { name: "Try again" });
      for (let times = 0; times < 40 && (await again.isVisible()); times += 1) {
        await again.click({ timeout: 1000 }).catch(() => undefined);
        await first.waitForTimeout(500);
      }
      await first.getByText("has this console").waitFor({ state: "detached" });
      await first.getByLabel(`Keyboard of ${NAME}'s console`).focus();
      await first.keyboard.type("again");
      await shows(first, "again");
    },
  },
  "console-cut": {
    about: "a console comes back after a cut, with all that was typed meanwhile, once",
    async run(lab) {
      const page = await lab.open("#/guests");
      await guest(lab, page);
      await opened(lab, page);
      await page.keyboard.type("before ");
      await shows(page, "before");
      lab.wire.cut();
      await page.getByText("The console is not connected").waitFor();
      await page.keyboard.type("meanwhile ");
      await lab.axe(page, "a console that is not connected");
      lab.wire.mend();
      await page.getByText("The console is not connected").waitFor({ state: "detached" });
      await shows(page, "before meanwhile");
      await page.keyboard.type("after");
      await shows(page, "before meanwhile after");
    },
  },
  "console-move": {
    about: "a console goes on at the new host when its guest moves; at 360 px nothing is wider",
    async run(lab) {
      const page = await lab.open("#/guests", { width: 360, height: 780, scheme: "light" });
      const { host } = await guest(lab, page);
      await opened(lab, page);
      await page.keyboard.type("here");
      await shows(page, "here");
      await lab.fits(page, "a console");
      await lab.axe(page, "a narrow console");
      await lab.shot(page, "console-narrow");
      const asked = await lab.api(page, "POST", `/vms/${NAME}/migrate`);
      if (asked.status >= 300) throw new Skipped(`it is not moved: ${asked.value.detail}`);
      await shows(page, "the guest runs on").catch(async (error) => {
        // Why the guest was not moved is in what the operation says.
        const { value } = await lab.api(page, "GET", `/operations/${asked.value.id}`);
        throw new Error(`${error.message} ${value.state}: ${value.message} ${JSON.stringify(value.moves)}`);
      });
      const now = (await lab.api(page, "GET", `/vms/${NAME}`)).value.host;
      assert.notEqual(now, host);
      await page.getByLabel(`Keyboard of ${NAME}'s console`).focus();
      await page.keyboard.type("there");
      await shows(page, "there");
    },
  },
};
