import { expect, test } from "vitest";

import { differences, MOST_COMPARED, runsOf } from "../src/compare/runs";

test("runs of an address are those of its list and of earlier links, each once", () => {
  expect(runsOf(new URLSearchParams("jobs=x,y,x&a=z"))).toEqual(["x", "y", "z"]);
  const many = Array.from({ length: 20 }, (_, n) => n).join(",");
  expect(runsOf(new URLSearchParams({ jobs: many }))).toHaveLength(MOST_COMPARED);
});

test("specs differ in fields whose values are not the same in all", () => {
  const found = differences([
    { name: "one", program: { lr: 0.1, epochs: 3 } },
    { name: "two", program: { lr: 0.2, epochs: 3, seed: 1 } },
    { name: "three", program: { lr: 0.1, epochs: 3 } },
  ]);
  expect(found).toEqual([
    ["program.lr", [0.1, 0.2, 0.1]],
    ["program.seed", [undefined, 1, undefined]],
  ]);
});
