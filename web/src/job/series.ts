// The points of one name, of the job as a whole (device -1) and of its devices.

import type uPlot from "uplot";

import { get, type MetricEvent, type MetricList, type Series } from "../api";

const POINTS = 200;
/** An answer with all series serves all charts that ask for theirs within this time. */
const TOGETHER_MS = 1000;
/** From so many points of a series on they are read down-sampled again. */
const MOST = 3000;

interface Points {
  steps: number[];
  values: (number | null)[];
  /** Number of the newest point. */
  last: number;
}

/** By device. */
export type Lines = Map<number, Points>;

let together: { path: string; at: number; answer: Promise<MetricList> } | null = null;

/** The series of one name. The service reads the whole file for each answer: where there are `few` names, all are asked
 * for at once. */
export async function fetched(id: string, attempt: number, name: string, few: boolean): Promise<Lines> {
  const query = new URLSearchParams({ ...(few ? {} : { name }), points: String(POINTS), attempt: String(attempt) });
  const path = `/v1/jobs/${id}/metrics?${query}`;
  if (together?.path !== path || performance.now() - together.at > TOGETHER_MS) {
    together = { path, at: performance.now(), answer: get<MetricList>(path) };
  }
  const series = (await together.answer).series.filter((one) => one.name === name);
  const sorted = series.sort((a, b) => b.device - a.device); // the job's own is drawn last, over the others
  return new Map(sorted.map((one) => [one.device, pointsOf(one)]));
}

/** With a batch of points that has come; null when it has to be read anew. */
export function appended(lines: Lines, event: MetricEvent): Lines | null {
  const known = lines.get(event.device);
  if (!known) return null;
  const fresh = event.points.slice(Math.max(0, known.last + 1 - event.first));
  if (!fresh.length) return lines;
  if (event.first > known.last + 1 || known.steps.length > MOST) return null;
  const grown = {
    steps: [...known.steps, ...fresh.map(([step]) => step)],
    values: [...known.values, ...fresh.map(([, value]) => value)],
    last: known.last + fresh.length,
  };
  return new Map([...lines].map(([device, points]) => [device, device === event.device ? grown : points]));
}

/** What uPlot draws: one column of steps, and one of values for each device. A logarithm takes no zero. */
export function columns(lines: Lines, log: boolean): uPlot.AlignedData {
  const steps = [...new Set([...lines.values()].flatMap((points) => points.steps))].sort((a, b) => a - b);
  const at = new Map(steps.map((step, index) => [step, index]));
  return [
    steps,
    ...[...lines.values()].map((points) => {
      const column: (number | null)[] = new Array<null>(steps.length).fill(null);
      points.steps.forEach((step, n) => {
        const value = points.values[n]!;
        column[at.get(step)!] = log && value != null && value <= 0 ? null : value;
      });
      return column;
    }),
  ];
}

/** A bucket of many points stands for them with its mean. */
function pointsOf(one: Series): Points {
  if (one.points.length) {
    return {
      steps: one.points.map((point) => point.step),
      values: one.points.map((point) => point.value),
      last: one.points.at(-1)!.number,
    };
  }
  return {
    steps: one.buckets.map((bucket) => bucket.last.step),
    values: one.buckets.map((bucket) => bucket.mean),
    last: one.buckets.at(-1)?.last.number ?? 0,
  };
}
