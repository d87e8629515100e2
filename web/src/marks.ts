// Which devices are marked, and by which words: the same rules as in the pictures that the service draws.

import type { DeviceMeasures, Pattern, Report } from "./api";

export const IDLE = "idle";
export const SLOW = "slow";
export const OUTPUT = "output";

/** Levels of the scale, 0 is the least. */
export const LEVELS = 7;
const SLOW_CAUSES: ReadonlySet<string> = new Set(["compute", "input"]);
const SLOW_FROM = 1.25;
const SLOW_STEPS = 10;
/** Parts of the mean by which a value is off, for each step of colour. */
const UNEVEN_FROM = [0.02, 0.12, 0.3];

export function slowDevice(report: Report): number | null {
  const slowest = report.balance.slowest_device;
  if (slowest == null || !SLOW_CAUSES.has(report.balance.cause ?? "")) return null;
  const typical = new Map(
    report.per_device
      .filter((one) => one.steps - one.idle_steps >= SLOW_STEPS)
      .map((one) => [one.device, typicalMs(one)] as const)
      .filter((pair): pair is readonly [number, number] => pair[1] != null),
  );
  const mine = typical.get(slowest);
  if (mine == null || typical.size < 2) return null;
  const others = median([...typical].filter(([device]) => device !== slowest).map(([, took]) => took));
  return others > 0 && mine >= SLOW_FROM * others ? slowest : null;
}

function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half]! : (sorted[half - 1]! + sorted[half]!) / 2;
}

/** Milliseconds of a typical step: data wait, forward and backward by their medians. */
export function typicalMs(one: DeviceMeasures): number | null {
  const parts = [one.data_wait_ms, one.forward_ms, one.backward_ms].filter((part) => part != null);
  return parts.length ? parts.reduce((sum, part) => sum + part.p50, 0) : null;
}

/** Devices that got nothing of some batch, and in how many steps. */
export function idleSteps(report: Report): Map<number, number> {
  return new Map(report.per_device.filter((one) => one.idle_steps > 0).map((one) => [one.device, one.idle_steps]));
}

export function level(value: number, most: number): number {
  return most <= 0 ? 0 : Math.min(LEVELS - 1, Math.floor((value / most) * LEVELS * 0.9999));
}

/** How far from even a value is: 0 within two percent, then up to 3 more (or -3: less) than the mean. */
export function unevenness(value: number, mean: number): number {
  if (mean <= 0) return 0;
  const off = value / mean - 1;
  const size = UNEVEN_FROM.filter((from) => Math.abs(off) > from).length;
  return size === 0 ? 0 : Math.sign(off) * size;
}

/** The class of a cell that is coloured around even. */
export function unevenClass(value: number, mean: number): string {
  const off = unevenness(value, mean);
  return off === 0 ? "at-even" : `${off > 0 ? "over" : "under"}${Math.abs(off)}`;
}

export const meanOf = (values: readonly (number | null)[]): number => {
  const known = values.filter((value): value is number => value != null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : 0;
};

/** Patterns in the order in which people look for them: the main phase first, then as they came. */
export function inOrder(patterns: Pattern[]): Pattern[] {
  const phases = ["train", "forward", "eval", "other"];
  return [...patterns].sort(
    (a, b) => phases.indexOf(a.phase) - phases.indexOf(b.phase) || (a.first_step ?? 0) - (b.first_step ?? 0),
  );
}
