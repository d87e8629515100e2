// What the cells of the map can show, and the words about one of them.

import type { DeviceMeasures, Pattern, Report } from "../api";
import { bytes, count, ms, percent, plural, shape } from "../format";
import { typicalMs } from "../marks";

export type By = "rows" | "time" | "wait" | "memory";
type Measure = Exclude<By, "rows">;

const VALUES: Record<Measure, (one: DeviceMeasures) => number | null> = {
  time: typicalMs,
  wait: (one) => one.data_wait_ms?.p50 ?? null,
  memory: (one) => one.memory_peak_bytes,
};
const NOTES: Record<By, string[]> = {
  rows: ["patterns"],
  time: ["per_device.forward_ms", "per_device.backward_ms"],
  wait: ["per_device.data_wait_ms"],
  memory: ["per_device.memory_peak_bytes"],
};
const TITLES: Record<By, string> = {
  rows: "rows of one batch",
  time: "data wait + forward + backward",
  wait: "waiting for data",
  memory: "peak memory",
};

export const SHOW: Record<Measure, (value: number) => string> = { time: ms, wait: ms, memory: bytes };

export const titleOf = (by: By): string => TITLES[by];

export function measured(by: Measure, report: Report, device: number): number | null {
  const one = report.per_device.find((found) => found.device === device);
  return one ? VALUES[by](one) : null;
}

/** The largest value of several reports, for one scale. */
export function largest(by: By, reports: Report[]): number | null {
  if (by === "rows") return null;
  return Math.max(0, ...reports.flatMap((report) => report.per_device.map((one) => VALUES[by](one) ?? 0)));
}

export function whyNot(by: By, report: Report): string {
  const why = NOTES[by].map((field) => report.notes[field]).find((note) => note);
  return why ? `: ${why}.` : ".";
}

export function aboutShard(pattern: Pattern, device: number, report: Report): string {
  const rows = pattern.rows?.[device];
  const got = rows == null ? "rows not known" : rows === 0 ? "idle" : plural(rows, "row");
  const steps = pattern.first_step == null ? "" : `steps ${count(pattern.first_step)} to ${count(pattern.last_step)}`;
  const shapes = [
    `in ${shape(pattern.input_shapes?.[device])}`,
    `out ${shape(pattern.output_shapes?.[device])}${pattern.shapes_vary ? " (shapes vary)" : ""}`,
  ];
  return [`device ${device}: ${got}`, ...shapes, ...times(report, device), steps].filter(Boolean).join(" · ");
}

export function aboutDevice(device: number, report: Report): string {
  return [`device ${device}`, ...times(report, device)].join(" · ");
}

function times(report: Report, device: number): string[] {
  const one = report.per_device.find((found) => found.device === device);
  if (!one) return [];
  return [
    `share ${percent(one.share)}`,
    `forward ${ms(one.forward_ms?.p50)}`,
    `backward ${ms(one.backward_ms?.p50)}`,
    `wait ${ms(one.data_wait_ms?.p50)}`,
  ];
}
