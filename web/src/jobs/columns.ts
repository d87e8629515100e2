// Columns of the table of jobs: what they show and how they sort. Values of a job beside its row come by the names of
// columns: "metrics.accuracy", "spec.program.data.batch_size".

import type { ListedJob } from "../api";
import { between, clock, duration, number } from "../format";

/** What the service sends for a column of a job. */
export type Value = string | number | boolean | null;

/** A job with the values of the columns that are not part of it. */
export interface TableRow {
  job: ListedJob;
  values: Readonly<Record<string, Value>>;
}

export interface Column {
  name: string;
  title: string;
  width: number;
  numeric: boolean;
  sortBy: (row: TableRow, now: number) => Value;
}

/** Columns that a job has by itself. */
const OWN: readonly Column[] = [
  { name: "state", title: "State", width: 200, numeric: false, sortBy: ({ job }) => job.state },
  {
    name: "progress",
    title: "Progress",
    width: 170,
    numeric: false,
    sortBy: ({ job }) => job.progress?.fraction ?? null,
  },
  { name: "devices", title: "Devices", width: 120, numeric: false, sortBy: ({ job }) => job.devices * job.nodes },
  { name: "pool", title: "Pool", width: 110, numeric: false, sortBy: ({ job }) => job.pool },
  { name: "node", title: "Node", width: 120, numeric: false, sortBy: ({ job }) => job.placement[0]?.node ?? null },
  { name: "priority", title: "Priority", width: 90, numeric: true, sortBy: ({ job }) => job.priority },
  { name: "attempt", title: "Attempt", width: 90, numeric: true, sortBy: ({ job }) => job.attempt },
  { name: "created", title: "Submitted", width: 110, numeric: false, sortBy: ({ job }) => Date.parse(job.created_at) },
  {
    name: "took",
    title: "Took",
    width: 90,
    numeric: true,
    sortBy: ({ job }, now) => between(job.started_at, job.finished_at, now),
  },
];
const JOB: Column = { name: "name", title: "Job", width: 260, numeric: false, sortBy: ({ job }) => job.name || job.id };

export const OWN_NAMES: readonly string[] = OWN.map((column) => column.name);
export const FIRST_COLUMNS: readonly string[] = ["state", "progress", "loss", "devices", "created", "took", "owner"];
const TITLES: Record<string, string> = { owner: "Owner", loss: "Loss", rows_per_second: "Rows/s" };
const WIDTHS: Record<string, number> = { owner: 100, loss: 90, rows_per_second: 90 };

/** The columns of these names. The first is always the job itself. */
export function columnsOf(names: readonly string[]): Column[] {
  const known = new Map(OWN.map((column) => [column.name, column]));
  return [JOB, ...names.map((name) => known.get(name) ?? other(name))];
}

/** Of the names of columns, those whose values are asked for. */
export const asked = (names: readonly string[]): string[] =>
  names.filter((name) => name !== JOB.name && !OWN_NAMES.includes(name));

function other(name: string): Column {
  return {
    name,
    title: TITLES[name] ?? shortened(name),
    width: WIDTHS[name] ?? 130,
    numeric: name !== "owner",
    sortBy: ({ values }) => values[name] ?? null,
  };
}

/** "spec.program.optimizer.args.lr" is "optimizer.lr" to people. */
function shortened(name: string): string {
  const parts = name.split(".").filter((part) => !["spec", "metrics", "program", "args"].includes(part));
  return parts.slice(-2).join(".") || name;
}

/** A value as a cell shows it. */
export function shown(value: Value | undefined): string {
  if (value == null) return "";
  return typeof value === "number" ? number(value) : String(value);
}

export const age = (at: string | null, now: number): string => {
  const seconds = between(at, null, now);
  if (seconds == null) return "";
  if (seconds < 60) return "now";
  return seconds < 86_400 ? `${duration(seconds)} ago` : clock(at);
};

/** "-loss" is the column "loss" from the greatest value on. */
export interface Order {
  column: string;
  down: boolean;
}

export function orderOf(text: string): Order | null {
  if (!text) return null;
  return text.startsWith("-") ? { column: text.slice(1), down: true } : { column: text, down: false };
}

export const textOf = (order: Order | null): string => (order ? `${order.down ? "-" : ""}${order.column}` : "");

/** What a click on the head of a column asks for: up, down, and as it was. */
export function nextOrder(order: Order | null, column: string, numeric: boolean): Order | null {
  if (order?.column !== column) return { column, down: numeric };
  return order.down === numeric ? { column, down: !numeric } : null;
}

/** Rows in an order; those without a value come last either way, and equal ones stay as they were. */
export function sorted(rows: readonly TableRow[], order: Order | null, now: number): readonly TableRow[] {
  if (!order) return rows;
  const [column] = columnsOf([order.column]).filter((one) => one.name === order.column);
  if (!column) return rows;
  const sign = order.down ? -1 : 1;
  const keyed = rows.map((row) => [column.sortBy(row, now), row] as const);
  keyed.sort(([a], [b]) => {
    if (a == null || b == null) return Number(a == null) - Number(b == null);
    return sign * compared(a, b);
  });
  return keyed.map(([, row]) => row);
}

function compared(a: string | number | boolean, b: string | number | boolean): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a < typeof b ? -1 : 1;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

/** Which of many things of one size are in sight, with some on each side: from the first, up to the last but one. */
export function inSight(
  scrolled: number,
  room: number,
  sizes: readonly number[] | number,
  count: number,
  beside: number,
): [from: number, to: number] {
  if (typeof sizes === "number") {
    const from = Math.max(0, Math.floor(scrolled / sizes) - beside);
    return [Math.min(from, count), Math.min(count, Math.ceil((scrolled + room) / sizes) + beside)];
  }
  let at = 0;
  let from = count;
  let to = 0;
  for (let n = 0; n < count; n += 1) {
    const end = at + sizes[n]!;
    if (end > scrolled && from === count) from = n;
    if (at < scrolled + room) to = n + 1;
    at = end;
  }
  return [Math.max(0, from - beside), Math.min(count, to + beside)];
}
