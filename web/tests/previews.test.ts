import { expect, test } from "vitest";

import { csvRows, headerLength, previewOf, tensorsOf } from "../src/job/previews";

test("what can be shown of a file is told by its name", () => {
  expect(["a.PNG", "x/metrics.csv", "model.safetensors", "notes.md", "model.pt", "LICENSE"].map(previewOf)).toEqual([
    "image",
    "table",
    "tensors",
    "text",
    null,
    null,
  ]);
});

test("rows of a table have their cells, quoted ones too, and a cut line is left out", () => {
  expect(csvRows('step,note\r\n1,"a, ""b"""\n2,\n3,cut', ",", 10)).toEqual([
    ["step", "note"],
    ["1", 'a, "b"'],
    ["2", ""],
  ]);
  expect(csvRows("1\n2\n3\n", ",", 2)).toEqual([["1"], ["2"]]);
});

test("a safetensors header has names, kinds and shapes", () => {
  const start = new ArrayBuffer(8);
  new DataView(start).setBigUint64(0, 120n, true);
  expect(headerLength(start)).toBe(120);
  new DataView(start).setBigUint64(0, 2n ** 60n, true);
  expect(headerLength(start)).toBeNull();
  expect(headerLength(new ArrayBuffer(3))).toBeNull();
  const header = '{"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [8, 4], "data_offsets": [0, 128]}}';
  expect(tensorsOf(header)).toEqual({
    tensors: [{ name: "w", kind: "F32", shape: [8, 4], bytes: 128 }],
    notes: { format: "pt" },
  });
});
