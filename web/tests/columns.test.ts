import { describe, expect, test } from "vitest";

import type { ListedJob } from "../src/api";
import { asked, columnsOf, inSight, nextOrder, orderOf, sorted, type TableRow, type Value } from "../src/jobs/columns";

const NOW = Date.parse("2026-01-01T00:10:00Z");

function row(id: string, values: Record<string, Value> = {}, fields: Partial<ListedJob> = {}): TableRow {
  const job = {
    id,
    name: id,
    state: "succeeded",
    devices: 1,
    nodes: 1,
    placement: [],
    created_at: "2026-01-01T00:00:00Z",
  };
  return { job: { ...job, started_at: null, finished_at: null, ...fields } as unknown as ListedJob, values };
}

const ids = (rows: readonly TableRow[]) => rows.map(({ job }) => job.id).join("");

describe("rows in an order", () => {
  const rows = [row("a", { loss: 0.5 }), row("b", { loss: null }), row("c", { loss: 0.25 }), row("d", { loss: 12 })];
  test("go by the numbers of a column, and those without one come last either way", () => {
    expect(ids(sorted(rows, orderOf("loss"), NOW))).toBe("cadb");
    expect(ids(sorted(rows, orderOf("-loss"), NOW))).toBe("dacb");
    expect(ids(sorted(rows, null, NOW))).toBe("abcd");
  });
  test("go by names with numbers in them as people do", () => {
    expect(ids(sorted([row("run10"), row("run9"), row("run1")], orderOf("name"), NOW))).toBe("run1run9run10");
  });
  test("count what still runs up to now", () => {
    const running = row("r", {}, { started_at: "2026-01-01T00:00:00Z" });
    const ended = row("e", {}, { started_at: "2026-01-01T00:00:00Z", finished_at: "2026-01-01T00:01:00Z" });
    expect(ids(sorted([running, ended], orderOf("took"), NOW))).toBe("er");
  });
  test("ten thousand take less than a moment", () => {
    const many = Array.from({ length: 10_000 }, (_, n) => row(String(n), { loss: (n * 7919) % 10_007 }));
    const begun = performance.now();
    const found = sorted(many, orderOf("loss"), NOW);
    expect(performance.now() - begun).toBeLessThan(1000);
    expect(found[0]?.values["loss"]).toBe(0);
  });
});

test("a head that is clicked sorts one way, the other way, and not at all; numbers from the greatest on", () => {
  const first = nextOrder(null, "loss", true);
  expect(first).toEqual({ column: "loss", down: true });
  const second = nextOrder(first, "loss", true);
  expect(second).toEqual({ column: "loss", down: false });
  expect(nextOrder(second, "loss", true)).toBeNull();
  expect(nextOrder(first, "name", false)).toEqual({ column: "name", down: false });
});

test("only columns that a row does not have by itself are asked for", () => {
  expect(asked(["state", "loss", "name", "spec.program.optimizer.args.lr"])).toEqual([
    "loss",
    "spec.program.optimizer.args.lr",
  ]);
  expect(columnsOf(["spec.program.optimizer.args.lr"]).map((column) => column.title)).toEqual(["Job", "optimizer.lr"]);
});

test("of many rows or columns those in sight are drawn, and some beside them", () => {
  expect(inSight(3000, 600, 30, 10_000, 5)).toEqual([95, 125]);
  expect(inSight(0, 600, 30, 3, 5)).toEqual([0, 3]);
  expect(inSight(9e9, 600, 30, 10, 2)).toEqual([10, 10]);
  expect(inSight(250, 300, [100, 200, 300, 400, 500], 5, 0)).toEqual([1, 3]);
});
