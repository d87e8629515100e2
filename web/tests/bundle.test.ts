import { expect, test } from "vitest";

import { entrypointOf, selected } from "../src/submit/bundle";

test("caches, environments and secrets are never taken", () => {
  const paths = [
    "train.py",
    "src/model.py",
    ".env",
    "keys/id_rsa",
    "cert.pem",
    "src/__pycache__/model.cpython-311.pyc",
    ".git/config",
    ".venv/bin/python",
    "env.py",
    "admin.token",
  ];
  const { kept, left } = selected(paths.map((path) => ({ path })));
  expect(kept.map((one) => one.path)).toEqual(["train.py", "src/model.py", "env.py"]);
  expect(left).toHaveLength(7);
});

test("a script begins with a file of a usual name, else with one at the top", () => {
  expect(entrypointOf(["lib/a.py", "train.py", "b.py"])).toBe("train.py");
  expect(entrypointOf(["lib/a.py", "b.py"])).toBe("b.py");
  expect(entrypointOf(["README.md"])).toBe("");
});
