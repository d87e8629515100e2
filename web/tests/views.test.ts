import { expect, test } from "vitest";

import { dropView, MOST_VIEWS, type Store, savedViews, saveView } from "../src/jobs/views";

function store(kept?: string): Store {
  let text = kept ?? null;
  return { getItem: () => text, setItem: (_, value) => (text = value) };
}

test("a view is saved by its name, which another one of that name replaces, and dropped", () => {
  const kept = store();
  saveView(kept, "  mine ", "?state=failed");
  saveView(kept, "mine", "state=running");
  expect(savedViews(kept)).toEqual([{ name: "mine", query: "state=running" }]);
  expect(dropView(kept, "mine")).toEqual([]);
});

test("what a browser keeps is not trusted, and has an end", () => {
  expect(savedViews(store("no JSON"))).toEqual([]);
  expect(savedViews(store('[{"name": 3}, {"name": "a", "query": ""}]'))).toEqual([{ name: "a", query: "" }]);
  const kept = store();
  for (let n = 0; n < MOST_VIEWS + 5; n += 1) saveView(kept, `view ${n}`, "");
  expect(savedViews(kept)).toHaveLength(MOST_VIEWS);
});
