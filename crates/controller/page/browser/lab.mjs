// What flows share: signed-in pages, a wire to the controller that can be cut, axe, screenshots, the API.
import assert from "node:assert/strict";
import { connect, createServer } from "node:net";
import { join } from "node:path";
import { request } from "playwright-core";
import AxePackage from "@axe-core/playwright";

const AxeBuilder = AxePackage.default ?? AxePackage;

/** How long what is waited for may take: the machine may be busy. */
const WITHIN_MS = 30_000;

/** Thrown where the cluster lacks what a flow needs. */
export class Skipped extends Error {}

/** Forwards connections to the controller, and can be cut, as a cable is. */
class Wire {
  constructor(url) {
    this.target = new URL(url);
    this.sockets = new Set();
    this.isCut = false;
    this.server = createServer((near) => this.join(near));
  }

  async listen() {
    await new Promise((resolve) => this.server.listen(0, "127.0.0.1", resolve));
    return `${this.target.protocol}//127.0.0.1:${this.server.address().port}`;
  }

  join(near) {
    if (this.isCut) return near.destroy();
    const port = this.target.port || (this.target.protocol === "https:" ? 443 : 80);
    const far = connect({ host: this.target.hostname.replace(/^\[|\]$/g, ""), port: Number(port) });
    for (const [one, other] of [
      [near, far],
      [far, near],
    ]) {
      this.sockets.add(one);
      one.on("error", () => other.destroy());
      one.on("close", () => {
        this.sockets.delete(one);
        other.destroy();
      });
      one.pipe(other);
    }
  }

  cut() {
    this.isCut = true;
    for (const socket of this.sockets) socket.destroy();
  }

  mend() {
    this.isCut = false;
  }

  end() {
    this.cut();
    this.server.close();
  }
}

export class Lab {
  static async begin({ browser, url, token, out }) {
    const lab = new Lab();
    Object.assign(lab, { browser, url, token, out, contexts: [], mistakes: [], wire: new Wire(url) });
    lab.base = await lab.wire.listen();
    return lab;
  }

  /** Opens a page at an address, signed in unless the token is null. */
  async open(route = "#/", { token = this.token, width = 1280, height = 800, scheme = "dark", motion } = {}) {
    const context = await this.browser.newContext({
      ignoreHTTPSErrors: true,
      viewport: { width, height },
      colorScheme: scheme,
      locale: "en-GB",
      ...(motion ? { reducedMotion: motion } : {}),
    });
    context.setDefaultTimeout(WITHIN_MS);
    this.contexts.push(context);
    const page = await context.newPage();
    page.on("pageerror", (error) => this.mistakes.push(`${error.message}\n${error.stack ?? ""}`));
    page.on("console", (message) => {
      // That a request was refused is not a mistake of the page; a breach of the security policy is.
      if (message.type() === "error" && !/Failed to load resource|net::ERR_/.test(message.text())) {
        this.mistakes.push(message.text());
      }
    });
    await page.goto(`${this.base}/${route}`);
    if (token !== null) await this.signIn(page, token);
    this.page = page;
    return page;
  }

  async signIn(page, token = this.token) {
    await page.getByLabel("Token").fill(token);
    await page.keyboard.press("Enter");
    await page.locator("main#main").waitFor();
  }

  async go(page, route) {
    await page.evaluate((hash) => {
      location.hash = hash;
    }, route);
  }

  /** Waits until a page shows a text. */
  async sees(page, text) {
    await page.locator("main").getByText(text).first().waitFor();
  }

  /** Asks the API as the page does, with its cookie. */
  async api(page, method, path, body) {
    const answer = await page.evaluate(
      async ([method, path, body]) => {
        const response = await fetch(`/api/v1${path}`, {
          method,
          headers: { "x-skein-page": "1", ...(body ? { "content-type": "application/json" } : {}) },
          ...(body ? { body: JSON.stringify(body) } : {}),
        });
        const text = await response.text();
        return { status: response.status, value: text === "" ? undefined : JSON.parse(text) };
      },
      [method, path, body],
    );
    return answer;
  }

  /** Asks the API as another person does, past the wire: it may be cut. */
  async outside(method, path, body) {
    this.other ??= await request.newContext({ baseURL: this.url, ignoreHTTPSErrors: true });
    const headers = { authorization: `Bearer ${this.token}`, "x-skein-page": "1" };
    const answer = await this.other.fetch(`/api/v1${path}`, { method, headers, data: body });
    assert.ok(answer.ok(), `${method} ${path}: ${answer.status()} ${await answer.text()}`);
  }

  async first(page, path, fits = () => true) {
    const { status, value } = await this.api(page, "GET", path);
    assert.equal(status, 200, `GET ${path}`);
    return value.items.find(fits);
  }

  /** Finds what is not usable for all; there may be nothing. */
  async axe(page, what) {
    const { violations } = await new AxeBuilder({ page }).analyze();
    const told = violations.map(
      (found) =>
        `${found.id} (${found.impact}): ${found.help}\n` +
        found.nodes
          .slice(0, 3)
          .map((node) => `    ${node.html.slice(0, 160)}\n    ${node.failureSummary}`)
          .join("\n"),
    );
    assert.equal(violations.length, 0, `axe at ${what}:\n${told.join("\n")}`);
  }

  /** No screen is wider than its window, and no list or table wider than its box, but for the matrix of hosts. */
  async fits(page, what) {
    const [wide, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert.ok(wide <= window, `${what} is ${wide} px wide in a window of ${window} px`);
    const cut = await page.evaluate(() =>
      [...document.querySelectorAll(".list, .scroll:not(:has(.matrix))")]
        .filter((of) => of.scrollWidth > of.clientWidth)
        .map((of) => `${of.getAttribute("aria-label")}: ${of.scrollWidth} px in ${of.clientWidth}`),
    );
    assert.deepEqual(cut, [], `${what} has tables that are cut`);
  }

  async shot(page, name) {
    await page.screenshot({ path: join(this.out, `${name}.png`), fullPage: true });
  }

  async shotOfFailure(name) {
    await this.page?.screenshot({ path: join(this.out, `failed-${name}.png`) }).catch(() => undefined);
  }

  checkMistakes() {
    const told = this.mistakes.splice(0);
    assert.equal(told.length, 0, `the page made mistakes:\n${told.join("\n")}`);
  }

  async closePages() {
    this.mistakes.length = 0;
    this.wire.mend();
    await Promise.all(this.contexts.splice(0).map((context) => context.close()));
    this.page = undefined;
  }

  async end() {
    await this.closePages();
    await this.other?.dispose();
    this.wire.end();
  }
}
