// Serves dist/ in front of a controller, for work on the page without building the controller anew:
//
//   node dev/serve.mjs --controller https://127.0.0.1:7443 [--port 8080] [--invent]
//
// All of /api goes to the controller as it is. With --invent hosts have NICs and histories, and there are migrations
// that nobody makes (dev/invented.mjs). None of this is part of the page.
import { createReadStream } from "node:fs";
import { createServer } from "node:http";
import { request } from "node:https";
import { join } from "node:path";
import { Transform } from "node:stream";
import { parseArgs } from "node:util";
import { invented, withNics } from "./invented.mjs";

const { values: options } = parseArgs({
  options: {
    controller: { type: "string" },
    port: { type: "string", default: "8080" },
    invent: { type: "boolean", default: false },
  },
});
const upstream = new URL(options.controller);
// As the controller has it.
const policy =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
  "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const files = {
  "/": ["index.html", "text/html; charset=utf-8"],
  "/page.js": ["page.js", "text/javascript; charset=utf-8"],
  "/page.css": ["page.css", "text/css; charset=utf-8"],
  "/icon.svg": ["icon.svg", "image/svg+xml"],
  "/LICENSES.txt": ["LICENSES.txt", "text/plain; charset=utf-8"],
};

function ask(method, path, headers, body) {
  return new Promise((resolve, reject) => {
    const asked = request(new URL(path, upstream), { method, headers, rejectUnauthorized: false }, resolve);
    asked.on("error", reject);
    asked.end(body);
  });
}

async function read(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return Buffer.concat(parts);
}

/** Gives hosts NICs in what the controller says, an event's line at a time where it is a stream. */
function lines() {
  let rest = "";
  return new Transform({
    transform(chunk, _, done) {
      const parts = (rest + chunk).split("\n");
      rest = parts.pop();
      done(null, parts.map((line) => (line.startsWith("data:") ? withNics(line) : line) + "\n").join(""));
    },
  });
}

/** Returns the load of a host or guest whose history is asked for. */
async function loadOf({ url, headers }) {
  const of = /^(.*)\/history\b/.exec(url)?.[1];
  if (!of) return undefined;
  const answer = await ask("GET", of, { ...headers, host: upstream.host });
  return answer.statusCode === 200 ? JSON.parse(String(await read(answer))).load : undefined;
}

async function api(incoming, response) {
  const body = await read(incoming);
  if (options.invent && invented(incoming, response, await loadOf(incoming))) return;
  const answer = await ask(incoming.method, incoming.url, { ...incoming.headers, host: upstream.host }, body);
  const is_stream = answer.headers["content-type"] === "text/event-stream";
  if (options.invent && incoming.url.startsWith("/api/v1/hosts") && answer.statusCode === 200) {
    const text = withNics(String(await read(answer)));
    response.writeHead(answer.statusCode, { ...answer.headers, "content-length": Buffer.byteLength(text) });
    return response.end(text);
  }
  response.writeHead(answer.statusCode, answer.headers);
  response.flushHeaders();
  response.on("close", () => answer.destroy());
  answer.on("error", () => response.destroy());
  if (is_stream && options.invent) answer.pipe(lines()).pipe(response);
  else answer.pipe(response);
}

createServer(async (incoming, response) => {
  try {
    const path = new URL(incoming.url, "http://page").pathname;
    const file = files[path];
    if (file) {
      response.writeHead(200, {
        "content-type": file[1],
        "content-security-policy": policy,
        "cache-control": "no-cache",
      });
      createReadStream(join(import.meta.dirname, "../dist", file[0])).pipe(response);
    } else if (path.startsWith("/api/")) await api(incoming, response);
    else response.writeHead(404).end();
  } catch (error) {
    if (response.headersSent) return response.destroy();
    const detail = `the controller does not answer: ${error.message}`;
    response.writeHead(503, { "content-type": "application/problem+json" });
    response.end(JSON.stringify({ type: "urn:skein:dev", title: "Unavailable", status: 503, detail, cure: "" }));
  }
}).listen(Number(options.port), "127.0.0.1", () => console.log(`http://127.0.0.1:${options.port}`));
