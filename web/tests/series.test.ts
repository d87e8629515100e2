import { describe, expect, test } from "vitest";

import { columns, type Lines, type Look, smoothed } from "../src/job/series";

const LOOK: Look = { log: false, axis: "step", smoothing: 0 };

function points(steps: number[], values: (number | null)[], begun: number) {
  return { steps, values, times: steps.map((step) => begun + 1000 * step), last: steps.length };
}

describe("smoothing", () => {
  test("leaves a level as it is, from its first point on", () => {
    expect(smoothed([5, 5, 5], 0.9).map((value) => Number(value?.toFixed(9)))).toEqual([5, 5, 5]);
  });
  test("takes out what swings, and keeps gaps", () => {
    const found = smoothed([0, 1, null, 0, 1, 0, 1], 0.9);
    expect(found[2]).toBeNull();
    expect(Math.abs(found[6]! - 0.5)).toBeLessThan(0.2);
  });
  test("of nothing changes nothing", () => {
    const values = [1, 2];
    expect(smoothed(values, 0)).toBe(values);
  });
});

describe("lines of several runs", () => {
  const lines: Lines = new Map([
    [0, points([0, 2], [1, 0], 10_000)],
    [1, points([1, 2], [3, 4], 50_000)],
  ]);
  test("share the steps that one of them has", () => {
    expect(columns(lines, LOOK)).toEqual([
      [0, 1, 2],
      [1, null, 0],
      [null, 3, 4],
    ]);
  });
  test("begin each at its own time where they are apart", () => {
    expect(columns(lines, { ...LOOK, axis: "time" }, true)[0]).toEqual([0, 1, 2]);
    expect(columns(lines, { ...LOOK, axis: "time" })[0]).toEqual([0, 2, 41, 42]);
  });
  test("have no zero on a logarithmic scale", () => {
    expect(columns(lines, { ...LOOK, log: true })[1]).toEqual([1, null, null]);
  });
});
