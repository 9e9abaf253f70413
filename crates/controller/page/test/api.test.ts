import assert from "node:assert/strict";
import { test } from "node:test";
import { SseReader } from "../src/api/sse";
import { waitMs } from "../src/api/stream";
import { sentence } from "../src/components/problem";
import { parseRoute, withQuery } from "../src/router";

test("events are read from any pieces", () => {
  const text = ': here\n\nevent: host\nid: 4.1\ndata: {"a":\ndata: 1}\n\ndata:x\r\n\r\nevent: vm\n';
  for (let size = 1; size < text.length; size += 1) {
    const reader = new SseReader();
    const sent = [];
    for (let at = 0; at < text.length; at += size) sent.push(...reader.take(text.slice(at, at + size)));
    assert.deepEqual(sent, [
      { event: "host", data: '{"a":\n1}', id: "4.1" },
      { event: "message", data: "x", id: "4.1" },
    ]);
  }
});

test("waits grow up to a bound and differ from page to page", () => {
  assert.equal(waitMs(0, 0), 250);
  assert.equal(waitMs(0, 1), 500);
  assert.equal(waitMs(3, 1), 4000);
  assert.equal(waitMs(1000, 1), 15_000);
});

test("addresses are read and made", () => {
  const { path, query } = parseRoute("#/hosts/a%2Fb?q=x%20y&state=lost");
  assert.deepEqual(path, ["hosts", "a/b"]);
  assert.equal(query.get("q"), "x y");
  assert.deepEqual(parseRoute("").path, []);
  assert.deepEqual(parseRoute("#/hosts/%zz").path, ["hosts", "%zz"]);
  assert.equal(withQuery(["guests"], { q: "a b", state: "" }), "#/guests?q=a+b");
  assert.equal(withQuery(["a/b"], {}), "#/a%2Fb");
});

test("the API's texts become sentences, commands stay as they are given", () => {
  assert.equal(sentence("there is no host 'a'"), "There is no host 'a'.");
  assert.equal(sentence("see that it runs!"), "See that it runs!");
  assert.equal(sentence("skein host list"), "skein host list");
  assert.equal(sentence(""), "");
});
