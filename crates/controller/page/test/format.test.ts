import assert from "node:assert/strict";
import { test } from "node:test";
import {
  about,
  ago,
  bitsPerS,
  bytes,
  bytesPerS,
  duration,
  forHowLong,
  percent,
  range,
  readRate,
  several,
  speed,
  UNKNOWN,
  wholeBytes,
} from "../src/format";

test("what is not known is no number", () => {
  for (const of of [bytes, bitsPerS, bytesPerS, duration, percent, about, speed]) {
    assert.equal(of(undefined), UNKNOWN);
    assert.equal(of(null), UNKNOWN);
    assert.equal(of(Number.NaN), UNKNOWN);
  }
  assert.equal(range(undefined, 4), UNKNOWN);
  assert.equal(ago(""), UNKNOWN);
});

test("numbers have three digits that matter, and the unit of their kind", () => {
  assert.equal(bitsPerS(9_420_000_000), "9.42 Gbit/s");
  assert.equal(bitsPerS(94_200_000), "94.2 Mbit/s");
  assert.equal(bitsPerS(999_600), "1.00 Mbit/s");
  assert.equal(bitsPerS(0), "0 bit/s");
  assert.equal(bytes(32 * 2 ** 30), "32.0 GiB");
  assert.equal(wholeBytes(32 * 2 ** 30), "32 GiB");
  assert.equal(wholeBytes(1.5 * 2 ** 30), "1.50 GiB");
  assert.equal(bytes(512), "512 B");
  assert.equal(bytesPerS(310_000_000), "310 MB/s");
  assert.equal(speed(10e9), "10 Gbit/s");
  assert.equal(speed(2.5e9), "2.5 Gbit/s");
  assert.equal(speed(100e9), "100 Gbit/s");
  assert.equal(percent(0.5), "50 %");
  assert.equal(percent(0.012), "1.2 %");
  assert.equal(several(1, "guest"), "1 guest");
  assert.equal(several(1200, "guest"), "1,200 guests");
});

test("lengths of time", () => {
  assert.equal(duration(61), "61 ms");
  assert.equal(duration(7300), "7.3 s");
  assert.equal(duration(9960), "10 s");
  assert.equal(duration(59_700), "1 min 00 s");
  assert.equal(duration(125_000), "2 min 05 s");
  assert.equal(duration(3 * 3_600_000 + 240_000), "3 h 04 min");
  assert.equal(duration(51 * 3_600_000), "2 d 3 h");
  assert.equal(about(7300), "7 s");
  assert.equal(range(32_000, 58_000), "32 to 58 s");
  assert.equal(range(39_000, 71_000), "39 s to 1 min 11 s");
  assert.equal(range(4000, 4000), "4 s");
});

test("rates are read as people write them", () => {
  assert.equal(readRate("2.5 Gbit/s"), 2.5e9);
  assert.equal(readRate("800M"), 8e8);
  assert.equal(readRate("9000000"), 9e6);
  assert.equal(readRate("9.42 Gbit/s"), 9.42e9);
  assert.equal(readRate("fast"), undefined);
  assert.equal(readRate(""), undefined);
});

test("for how long something has been so is told in words", () => {
  assert.equal(forHowLong(0, 30_000), "just now");
  assert.equal(forHowLong(0, 150_000), "for 2 min");
  assert.equal(forHowLong("", 0), UNKNOWN);
});
