// How busy devices are, from what nodes sample of the jobs that run on them.

import { useEffect, useRef, useState } from "preact/hooks";

import { get, type JobSummary, type MetricList, type Placement, type Series } from "../api";
import { bytes, number, percent } from "../format";

const LOOK_MS = 5000;
const POINTS = 24;
/** Jobs whose devices are shown live. */
const MOST_JOBS = 24;

export interface Busy {
  /** From 0 to 1, where that is known. */
  part: number;
  words: string;
  /** Lately, from 0 to 1, the oldest first. */
  lately: number[];
}

/** By "<node> <label of the device>". */
export type BusyByDevice = ReadonlyMap<string, Busy>;

export function useUtilisation(jobs: readonly JobSummary[]): BusyByDevice {
  const [found, setFound] = useState<BusyByDevice>(new Map());
  const wanted = useRef(jobs);
  wanted.current = jobs;
  const key = jobs.map((job) => `${job.id}.${job.attempt}`).join();
  useEffect(() => {
    let over = false;
    const look = async () => {
      const some = wanted.current.slice(0, MOST_JOBS);
      const read = (job: JobSummary) =>
        get<MetricList>(`/v1/jobs/${job.id}/metrics?source=hardware&points=${POINTS}&attempt=${job.attempt}`).then(
          (answer) => busyDevices(job.placement, answer.series),
          () => [],
        );
      const all = await Promise.all(some.map(read));
      if (!over) setFound(new Map(all.flat()));
    };
    void look();
    const timer = setInterval(() => !document.hidden && void look(), LOOK_MS);
    return () => {
      over = true;
      clearInterval(timer);
    };
  }, [key]);
  return found;
}

/** Of the devices of a job, which are numbered through from node to node. */
export function busyDevices(placement: readonly Placement[], series: readonly Series[]): [string, Busy][] {
  const names = placement.flatMap((place) => place.devices.map((label) => `${place.node} ${label}`));
  return names.flatMap((name, device): [string, Busy][] => {
    const of = (wanted: string) => series.find((one) => one.device === device && one.name === wanted)?.buckets;
    const busy = of("utilisation") ?? of("cpu_cores");
    const last = busy?.at(-1)?.mean;
    if (!busy || last == null) return [];
    const memory = (of("memory_used_bytes") ?? of("resident_bytes"))?.at(-1)?.mean;
    const gpu = of("utilisation") != null;
    const words = [
      gpu ? `${percent(last)} busy` : `${number(Number(last.toFixed(2)))} cores`,
      memory == null ? "" : bytes(memory),
    ];
    const lately = busy.map((one) => Math.min(1, one.mean ?? 0));
    return [[name, { part: Math.min(1, last), words: words.filter(Boolean).join(", "), lately }]];
  });
}
