// When which job had a device, on one axis of time.

import type { components } from "../schema";

export type DeviceUses = components["schemas"]["DeviceUses"];
export type DeviceUseList = components["schemas"]["DeviceUseList"];

export interface Span {
  job: string;
  /** Parts of the axis, from 0 to 1. */
  from: number;
  to: number;
  begun: number;
  ended: number | null;
  reason: string | null;
}

/** So short parts are drawn this long, so that they can be seen. */
const LEAST = 0.002;

/** The uses of a device, and who has it now since when, where that is known. */
export function spansOf(
  uses: DeviceUses["uses"],
  now: { job: string; since: number | null } | null,
  since: number,
  until: number,
): Span[] {
  const whole = until - since;
  const span = (job: string, begun: number, ended: number | null, reason: string | null): Span => {
    const from = Math.max(0, (begun - since) / whole);
    const to = Math.min(1, ((ended ?? until) - since) / whole);
    return {
      job,
      from: Math.min(from, 1 - LEAST),
      to: Math.max(to, Math.min(from, 1 - LEAST) + LEAST),
      begun,
      ended,
      reason,
    };
  };
  const past = uses.map((use) =>
    span(use.job ?? "", Date.parse(use.begun_at), Date.parse(use.ended_at), use.reason ?? null),
  );
  const lastEnd = Math.max(since, ...past.map((one) => one.ended ?? since));
  return now ? [...past, span(now.job, now.since ?? lastEnd, null, null)] : past;
}

const COLOURS = 8;

/** One of a few colours, the same for a job wherever it is. */
export function colourOf(job: string): number {
  let sum = 0;
  for (const letter of job) sum = (sum * 31 + letter.charCodeAt(0)) >>> 0;
  return sum % COLOURS;
}
