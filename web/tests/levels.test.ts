import { expect, test } from "vitest";

import { isAtLeast, levelOf } from "../src/job/levels";

test.each([
  ["2026-01-01 ERROR train: no", "error"],
  ["Traceback (most recent call last):", "error"],
  ["RuntimeError: mat1 and mat2 shapes cannot be multiplied", "error"],
  ["[rank1]: torch.cuda.OutOfMemoryError: CUDA out of memory", "error"],
  ["WARNING:train:no scaler", "warning"],
  ["/x.py:3: UserWarning: deprecated", "warning"],
  ["DEBUG step", "debug"],
  ["INFO step 4", "info"],
  ["the error is small: 0.1", "info"],
  ["step 4 loss 0.3", "info"],
])("%s is of level %s", (text, level) => {
  expect(levelOf(text)).toBe(level);
});

test("a level takes in those that are graver", () => {
  expect(["DEBUG a", "b", "WARN c", "ERROR d"].filter((text) => isAtLeast(text, "warning"))).toEqual([
    "WARN c",
    "ERROR d",
  ]);
});
