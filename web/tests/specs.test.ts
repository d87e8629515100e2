import { describe, expect, test } from "vitest";

import { changesOf, leaves, valueAt, withChanges } from "../src/submit/changes";
import { asCommand, asCurl, asPython } from "../src/submit/recipes";

const SPEC = { name: "it's", program: { data: { batch_size: 64, shuffle: true }, seed: null }, labels: {} };

describe("a suggestion", () => {
  test("names fields and values to set, of several the first", () => {
    expect(changesOf("set program.data.batch_size to 63 or 66")).toEqual([["program.data.batch_size", 63]]);
    const both =
      'instead of what is suggested for ragged-batch: set parallelism.strategy to "ddp" and program.data.batch_size to 1,024';
    expect(changesOf(both)).toEqual([
      ["parallelism.strategy", "ddp"],
      ["program.data.batch_size", 1024],
    ]);
    expect(changesOf("set program.data.drop_last to true, which leaves 29 rows out")).toEqual([
      ["program.data.drop_last", true],
    ]);
    expect(changesOf("set parallelism.weights to [3.0, 2.0, 1.25]; of the 50 rows")).toEqual([
      ["parallelism.weights", [3, 2, 1.25]],
    ]);
    expect(changesOf("look at the data loader")).toEqual([]);
  });
  test("is applied to a copy, and makes what is missing", () => {
    const changed = withChanges(SPEC, [
      ["program.data.batch_size", 63],
      ["parallelism.strategy", "ddp"],
    ]);
    expect(valueAt(changed, "program.data.batch_size")).toBe(63);
    expect(valueAt(changed, "parallelism.strategy")).toBe("ddp");
    expect(valueAt(changed, "program.data.shuffle")).toBe(true);
    expect(SPEC.program.data.batch_size).toBe(64);
    expect(valueAt(SPEC, "no.such.field")).toBeUndefined();
  });
});

test("leaves have their dotted paths", () => {
  expect(leaves({ a: { b: 1, c: [1, 2] }, d: {} })).toEqual([
    ["a.b", 1],
    ["a.c", [1, 2]],
    ["d", {}],
  ]);
});

describe("a spec to paste", () => {
  test("into a shell is quoted", () => {
    expect(asCurl(SPEC, "http://127.0.0.1:8000")).toContain(`"it'\\''s"`);
    expect(asCurl(SPEC, "http://127.0.0.1:8000")).not.toContain("sy_");
    expect(asCommand(SPEC)).toMatch(/^shardyard submit - --watch <<'SPEC'\n\{/);
  });
  test("into Python has its words", () => {
    const program = asPython(SPEC);
    expect(program).toContain('"shuffle": True');
    expect(program).toContain('"seed": None');
    expect(program).toContain("Client().submit(spec)");
  });
});
