// The points of one name, of the job as a whole (device -1) and of its devices.

import type uPlot from "uplot";

import { get, type MetricEvent, type MetricList, type Series } from "../api";

const POINTS = 200;
/** An answer with all series serves all charts that ask for theirs within this time. */
const TOGETHER_MS = 1000;
/** From so many points of a series on they are read down-sampled again. */
const MOST = 3000;
/** Requests that a download of a series may take. */
const PAGES = 200;

export interface Points {
  steps: number[];
  /** Milliseconds since the epoch. */
  times: number[];
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
    times: [...known.times, ...fresh.map(([, , at]) => Date.parse(at))],
    values: [...known.values, ...fresh.map(([, value]) => value)],
    last: known.last + fresh.length,
  };
  return new Map([...lines].map(([device, points]) => [device, device === event.device ? grown : points]));
}

/** What a curve goes along: steps, or seconds since the first point. */
export type Axis = "step" | "time";

export interface Look {
  log: boolean;
  axis: Axis;
  /** From 0, as it is, to nearly 1. */
  smoothing: number;
}

/** What uPlot draws: one column of places on the axis, and one of values for each line. A logarithm takes no zero. Lines
 * that are `apart` each begin at their own time. */
export function columns(lines: Lines, look: Look, apart = false): uPlot.AlignedData {
  const begun = Math.min(...[...lines.values()].flatMap((points) => points.times.slice(0, 1)));
  const along = (points: Points) => {
    const from = apart ? (points.times[0] ?? 0) : begun;
    return look.axis === "step" ? points.steps : points.times.map((time) => Math.max(0, (time - from) / 1000));
  };
  const places = [...new Set([...lines.values()].flatMap(along))].sort((a, b) => a - b);
  const at = new Map(places.map((place, index) => [place, index]));
  return [
    places,
    ...[...lines.values()].map((points) => {
      const column: (number | null)[] = new Array<null>(places.length).fill(null);
      const values = smoothed(points.values, look.smoothing);
      along(points).forEach((place, n) => {
        const value = values[n] ?? null;
        column[at.get(place)!] = look.log && value != null && value <= 0 ? null : value;
      });
      return column;
    }),
  ];
}

/** A mean that forgets, without the pull to zero that it has at its beginning. */
export function smoothed(values: readonly (number | null)[], weight: number): readonly (number | null)[] {
  if (weight <= 0) return values;
  let mean = 0;
  let left = 1;
  return values.map((value) => {
    if (value == null || !Number.isFinite(value)) return value;
    mean = weight * mean + (1 - weight) * value;
    left *= weight;
    return mean / (1 - left);
  });
}

/** Points of all devices as CSV, as they were logged. */
export async function asCsv(id: string, attempt: number, name: string): Promise<string> {
  const rows = ["device,number,step,at,value"];
  const query = new URLSearchParams({ name, attempt: String(attempt) });
  const first = await get<MetricList>(`/v1/jobs/${id}/metrics?${query}`);
  for (const series of first.series.filter((one) => one.name === name)) {
    let part = series;
    for (let page = 0; page < PAGES; page += 1) {
      for (const point of part.points) rows.push([part.device, point.number, point.step, point.at, point.value].join());
      if (!part.points.length || part.next >= part.last) break;
      const more = new URLSearchParams({
        ...Object.fromEntries(query),
        device: String(part.device),
        after: String(part.next),
      });
      const found = (await get<MetricList>(`/v1/jobs/${id}/metrics?${more}`)).series.find((one) => one.name === name);
      if (!found) break;
      part = found;
    }
  }
  return `${rows.join("\n")}\n`;
}

/** A bucket of many points stands for them with its mean. */
function pointsOf(one: Series): Points {
  if (one.points.length) {
    return {
      steps: one.points.map((point) => point.step),
      times: one.points.map((point) => Date.parse(point.at ?? "")),
      values: one.points.map((point) => point.value),
      last: one.points.at(-1)!.number,
    };
  }
  return {
    steps: one.buckets.map((bucket) => bucket.last.step),
    times: one.buckets.map((bucket) => Date.parse(bucket.last.at ?? "")),
    values: one.buckets.map((bucket) => bucket.mean),
    last: one.buckets.at(-1)?.last.number ?? 0,
  };
}
