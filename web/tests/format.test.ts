import { describe, expect, test } from "vitest";

import { bytes, duration, ms, number, percent, runs } from "../src/format";

describe("numbers for people", () => {
  test("have about four digits, and a dash where nothing is known", () => {
    expect([number(0.123456), number(12), number(null), number(1.5e9), number(Number.NaN)]).toEqual([
      "0.1235",
      "12",
      "–",
      "1.50e+9",
      "–",
    ]);
  });
  test("have the unit that is read most easily", () => {
    expect([bytes(512), bytes(1536), ms(3), ms(1500), percent(0.042), duration(95 * 60)]).toEqual([
      "512 bytes",
      "1.5 KiB",
      "3 ms",
      "1.5 s",
      "4.2 %",
      "1 h 35 min",
    ]);
  });
  test("of devices that follow each other are a run", () => {
    expect(runs(["cuda:0", "cuda:1", "cuda:2", "cuda:6"])).toBe("cuda:0-2, cuda:6");
  });
});
