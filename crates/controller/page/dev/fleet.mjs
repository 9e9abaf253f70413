// Runs a controller with simulated hosts around it, for work on the page:
//
//   node dev/fleet.mjs --controller target/debug/skein-controller --fleet target/debug/examples/fleet \
//     [--hosts 50] [--guests 20] [--dir DIR]
//
// It prints the controller's address and where the admin's token is, and runs until it is interrupted. Lines on its
// standard input go to the agents as they are: {"Fault":{"host":"h0003","kind":"Cut","for_ms":60000}}.
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

const { values: options } = parseArgs({
  options: {
    controller: { type: "string" },
    fleet: { type: "string" },
    hosts: { type: "string", default: "50" },
    guests: { type: "string", default: "20" },
    port: { type: "string" },
  },
});

async function freePort() {
  if (options.port) return Number(options.port);
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

const dir = mkdtempSync(join(tmpdir(), "skein-page-"));
const port = await freePort();
const init = spawnSync(options.controller, [
  "init",
  "--name",
  "fleet",
  "--controller",
  "ctl",
  "--address",
  "127.0.0.1",
  "--listen",
  `127.0.0.1:${port}`,
  "--store",
  `sqlite:${dir}/store/c.db`,
  "--ca",
  `${dir}/ca`,
  "--identity",
  `${dir}/identity`,
  "--config",
  `${dir}/controller.toml`,
]);
if (init.status !== 0) {
  console.error(String(init.stderr));
  process.exit(1);
}
const controller = spawn(options.controller, ["run", "--config", `${dir}/controller.toml`], {
  stdio: ["ignore", "ignore", "ignore"],
});
const agents = spawn(options.fleet, ["agents"], { stdio: ["pipe", "pipe", "inherit"] });
const begin = {
  ca: `${dir}/ca`,
  controller: `127.0.0.1:${port}`,
  seed: 1,
  first: 1,
  end: Number(options.hosts) + 1,
  guests_per_host: Number(options.guests),
  copy_bytes_per_s: 1_200_000_000,
  planetlab: null,
};
agents.on("exit", end);
setTimeout(() => agents.stdin.write(JSON.stringify({ Begin: begin }) + "\n"), 1500);
createInterface({ input: agents.stdout }).on("line", (line) => {
  if (line === '"Ready"') console.log(`https://127.0.0.1:${port} ${dir}/identity/admin.token`);
});
createInterface({ input: process.stdin }).on("line", (line) => agents.stdin.write(line + "\n"));

function end() {
  agents.kill();
  controller.kill();
  rmSync(dir, { recursive: true, force: true });
  process.exit();
}
process.on("SIGINT", end);
process.on("SIGTERM", end);
