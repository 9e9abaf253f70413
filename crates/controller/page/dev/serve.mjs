// Serves dist/ for work on the page, in front of a real controller that does not have all of the page's endpoints:
//
//   node dev/serve.mjs --controller https://127.0.0.1:7443 [--port 8080] [--invent]
//
// A cookie's session is kept here, and requests get the token that it was made with. With --invent hosts have NICs and
// histories, and there are migrations that nobody makes (dev/invented.mjs). None of this is part of the page.
import { randomBytes } from "node:crypto";
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
const policy =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
  "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const files = {
  "/": ["index.html", "text/html; charset=utf-8"],
  "/page.js": ["page.js", "text/javascript"],
  "/page.css": ["page.css", "text/css"],
  "/icon.svg": ["icon.svg", "image/svg+xml"],
};
const sessions = new Map();

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

function problem(response, status, detail, cure = "") {
  response.writeHead(status, { "content-type": "application/problem+json" });
  response.end(JSON.stringify({ type: "urn:skein:dev", title: "Refused", status, detail, cure }));
}

function sessionOf(incoming) {
  const id = /(?:^|; )skein=([0-9a-f]+)/.exec(incoming.headers.cookie ?? "")?.[1];
  const session = id && sessions.get(id);
  return session && { id, ...session };
}

async function roleOf(token) {
  const authorization = `Bearer ${token}`;
  const tokens = await ask("GET", "/api/v1/tokens?limit=1", { authorization });
  tokens.resume();
  if (tokens.statusCode === 401) return undefined;
  if (tokens.statusCode === 200) return "admin";
  const cancel = await ask("POST", "/api/v1/operations/none/cancel", { authorization });
  cancel.resume();
  return cancel.statusCode === 403 ? "viewer" : "operator";
}

async function session(incoming, response) {
  if (incoming.method === "POST") {
    const { token } = JSON.parse(String(await read(incoming)));
    const role = await roleOf(String(token).trim());
    if (!role) return problem(response, 401, "this token is not known here", "ask an admin for a token");
    const id = randomBytes(16).toString("hex");
    const named = { name: role, role };
    sessions.set(id, { token: String(token).trim(), named });
    const cookie = `skein=${id}; HttpOnly; SameSite=Strict; Path=/`;
    response.writeHead(200, { "content-type": "application/json", "set-cookie": cookie });
    return response.end(JSON.stringify(named));
  }
  const known = sessionOf(incoming);
  if (!known) return problem(response, 401, "nobody is signed in here");
  if (incoming.method === "DELETE") {
    sessions.delete(known.id);
    response.writeHead(204, { "set-cookie": "skein=; Max-Age=0; Path=/" });
    return response.end();
  }
  response.writeHead(200, { "content-type": "application/json" });
  return response.end(JSON.stringify(known.named));
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

async function api(incoming, response) {
  const bearer = /^Bearer (.+)$/.exec(incoming.headers.authorization ?? "")?.[1];
  const known = bearer ? { token: bearer } : sessionOf(incoming);
  if (!known) return problem(response, 401, "nobody is signed in here, or the token has expired");
  if (incoming.method !== "GET" && incoming.headers["x-skein-page"] !== "1") {
    return problem(response, 403, "the header X-Skein-Page is missing");
  }
  const body = await read(incoming);
  if (options.invent && invented(incoming, body, response)) return;
  const headers = { ...incoming.headers, authorization: `Bearer ${known.token}`, host: upstream.host };
  delete headers.cookie;
  const answer = await ask(incoming.method, incoming.url, headers, body);
  const is_stream = answer.headers["content-type"] === "text/event-stream";
  if (options.invent && incoming.url.startsWith("/api/v1/hosts") && answer.statusCode === 200 && !is_stream) {
    const text = withNics(String(await read(answer)));
    const kept = { ...answer.headers, "content-length": Buffer.byteLength(text) };
    response.writeHead(answer.statusCode, kept);
    return response.end(text);
  }
  response.writeHead(answer.statusCode, answer.headers);
  response.flushHeaders();
  incoming.on("close", () => answer.destroy());
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
        "content-type": file[1], "content-security-policy": policy, "cache-control": "no-cache",
      });
      createReadStream(join(import.meta.dirname, "../dist", file[0])).pipe(response);
    } else if (path === "/api/v1/session") await session(incoming, response);
    else if (path.startsWith("/api/")) await api(incoming, response);
    else problem(response, 404, "there is nothing here");
  } catch (error) {
    if (!response.headersSent) problem(response, 503, `the controller does not answer: ${error.message}`);
    else response.destroy();
  }
}).listen(Number(options.port), "127.0.0.1", () => console.log(`http://127.0.0.1:${options.port}`));
