import { describe, expect, test } from "vitest";

import type { Series } from "../src/api";
import { colourOf, spansOf } from "../src/fleet/spans";
import { busyDevices } from "../src/fleet/utilisation";

const at = (ms: number) => new Date(ms).toISOString();

describe("who had a device", () => {
  test("is drawn within the time that is shown, and what is short can be seen", () => {
    const uses = [{ begun_at: at(-500), ended_at: at(250), job: "a", attempt: 1, reason: "completed" }];
    const found = spansOf(uses, { job: "b", since: 750 }, 0, 1000);
    expect(found.map((one) => [one.job, one.from, one.to])).toEqual([
      ["a", 0, 0.25],
      ["b", 0.75, 1],
    ]);
    const [blink] = spansOf(
      [{ begun_at: at(999), ended_at: at(1000), job: "c", attempt: 1, reason: "" }],
      null,
      0,
      1000,
    );
    expect(blink!.to - blink!.from).toBeGreaterThan(0.001);
    expect(blink!.to).toBeLessThanOrEqual(1);
  });
  test("by whom it is not known since when, begins after the last one", () => {
    const uses = [{ begun_at: at(100), ended_at: at(400), job: "a", attempt: 1, reason: "completed" }];
    expect(spansOf(uses, { job: "another tenant", since: null }, 0, 1000).at(-1)?.from).toBe(0.4);
  });
  test("has one colour everywhere", () => {
    expect(colourOf("job-1")).toBe(colourOf("job-1"));
    expect(colourOf("job-1")).toBeLessThan(8);
  });
});

test("series of a job belong to the devices of its nodes in their order", () => {
  const bucket = (mean: number) => ({ count: 1, first: {}, last: {}, minimum: mean, maximum: mean, mean });
  const series = [
    { device: 0, name: "utilisation", buckets: [bucket(0.5), bucket(0.25)] },
    { device: 2, name: "cpu_cores", buckets: [bucket(1.5)] },
    { device: 2, name: "resident_bytes", buckets: [bucket(1024)] },
  ] as unknown as Series[];
  const placement = [
    { node: "a", devices: ["cuda:0", "cuda:1"], ranks: [] },
    { node: "b", devices: ["cpu:0"], ranks: [] },
  ];
  expect(busyDevices(placement, series)).toEqual([
    ["a cuda:0", { part: 0.25, words: "25 % busy", lately: [0.5, 0.25] }],
    ["b cpu:0", { part: 1, words: "1.5 cores, 1 KiB", lately: [1] }],
  ]);
});
