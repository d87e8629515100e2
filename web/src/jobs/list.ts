// The jobs of the table, which keeps itself up to date. The first page is there at once; the rest comes when somebody
// scrolls, or sorts by a column, for which all of them are needed.

import { useEffect, useRef, useState } from "preact/hooks";

import { ENDED, get, type JobSummary, type JobTable, type ListedJob, Problem } from "../api";
import { follow } from "../live";
import type { TableRow, Value } from "./columns";

const PAGE = 100;
const NEXT = 200;
/** So many rows are held; of more, the newest. */
export const MOST = 10_000;
/** Requests that the first page of a search may take: each of them looks at some thousands of jobs. */
const SEARCHES = 10;
/** How often progress and places in the queue are looked at: no event tells them. */
const LOOK_MS = 2000;
const REST_MS = 300;

export interface JobsInTable {
  rows: readonly TableRow[] | null;
  counts: Readonly<Record<string, number>>;
  /** There are older ones that are not read yet. */
  more: boolean;
  problem: string;
  live: boolean;
  fresh: number;
  busy: boolean;
  reload: () => void;
  readMore: () => void;
  drop: (ids: ReadonlySet<string>) => void;
}

export function useJobs(
  filter: URLSearchParams,
  columns: readonly string[],
  all: boolean,
  follows: boolean,
): JobsInTable {
  const key = `${filter} ${columns.join()}`;
  const [rows, setRows] = useState<readonly TableRow[] | null>(null);
  const [counts, setCounts] = useState<Record<string, number>>({});
  const [next, setNext] = useState<string | null>(null);
  const [problem, setProblem] = useState("");
  const [live, setLive] = useState(true);
  const [fresh, setFresh] = useState(0);
  const [busy, setBusy] = useState(false);
  const known = useRef<readonly TableRow[]>([]);
  known.current = rows ?? [];
  /** What the rows that are held were asked for by. */
  const held = useRef("");
  const newest = useRef(key);
  newest.current = key;

  const ask = (cursor: string | null, limit: number) => {
    const query = new URLSearchParams(filter);
    query.set("limit", String(limit));
    if (columns.length) query.set("columns", columns.join());
    if (cursor) query.set("cursor", cursor);
    return get<JobTable>(`/v1/jobs/table?${query}`);
  };

  const load = async (from: string | null) => {
    const before = from ? known.current : [];
    const found: TableRow[] = [];
    const enough = from ? NEXT : PAGE;
    let cursor = from;
    setBusy(true);
    try {
      for (let request = 0; request < SEARCHES; request += 1) {
        const answer = await ask(cursor, enough);
        if (newest.current !== key) return;
        found.push(...rowsOf(answer));
        cursor = answer.next;
        setCounts(answer.counts);
        const done = !cursor || found.length >= enough;
        // A search shows what it has, and goes on. Older rows that are held stay: ids sort by time.
        const last = found.at(-1)?.job.id ?? "";
        const older = !from && held.current === key && cursor ? known.current.filter((row) => row.job.id < last) : [];
        if (done || found.length) setRows([...before, ...found, ...older]);
        if (!older.length) setNext(cursor);
        held.current = key;
        if (done) break;
      }
      setProblem("");
      if (!from) setFresh(0);
    } catch (error) {
      if (newest.current === key) setProblem(error instanceof Problem ? error.message : String(error));
    } finally {
      if (newest.current === key) setBusy(false);
    }
  };
  /** The first page again, for progress, places in the queue and results; what it does not have stays as it is. */
  const refresh = async () => {
    const found = await ask(null, PAGE).catch(() => null);
    if (!found || newest.current !== key) return;
    const changed = new Map(rowsOf(found).map((row) => [row.job.id, row]));
    setCounts(found.counts);
    setRows((before) => before && before.map((row) => changed.get(row.job.id) ?? row));
  };
  const told = (changed: JobSummary) => {
    const listed = known.current;
    if (listed.some((row) => row.job.id === changed.id)) {
      setRows((before) => before && before.map((row) => (row.job.id === changed.id ? merged(row, changed) : row)));
      if (ENDED.has(changed.state)) stale.current = true;
    } else if (changed.created_at >= (listed[0]?.job.created_at ?? "")) setFresh((count) => count + 1);
  };
  const drop = (ids: ReadonlySet<string>) =>
    setRows((before) => before && before.filter((row) => !ids.has(row.job.id)));

  /** A job has ended: its values are those of its end only when they are read again. */
  const stale = useRef(false);
  const loadRef = useRef(load);
  loadRef.current = load;
  useEffect(() => {
    setNext(null);
    setFresh(0);
    const first = load(null);
    let followed = false;
    return follow(
      "/v1/events",
      {
        job: told,
        gone: (gone) => drop(new Set([gone.job_id])),
        resync: () => void (known.current.length > PAGE ? refresh() : load(null)),
      },
      (now) => {
        setLive(now);
        if (!now || followed) return;
        followed = true;
        void first.then(() => load(null)); // what happened before there was a stream is in none of its events
      },
    );
  }, [key]);
  useEffect(() => {
    if (!fresh || !follows) return;
    const timer = setTimeout(() => void load(null), REST_MS);
    return () => clearTimeout(timer);
  }, [fresh, follows]);
  useEffect(() => {
    if (!all || !next || busy || (rows?.length ?? 0) >= MOST) return;
    void load(next);
  }, [all, next, busy, key]);
  useEffect(() => {
    const timer = setInterval(() => {
      const moving = known.current.slice(0, PAGE).some((row) => !ENDED.has(row.job.state));
      if (document.hidden || !(moving || stale.current || !live)) return;
      stale.current = false;
      void (live || known.current.length > PAGE ? refresh() : loadRef.current(null));
    }, LOOK_MS);
    return () => clearInterval(timer);
  }, [key, live]);

  return {
    rows,
    counts,
    more: next != null && known.current.length < MOST,
    problem,
    live,
    fresh,
    busy,
    reload: () => void load(null),
    readMore: () => next && !busy && void load(next),
    drop,
  };
}

function rowsOf(table: JobTable): TableRow[] {
  return table.jobs.map((job, n) => {
    const values = (table.values[n] ?? []) as Value[];
    return { job, values: Object.fromEntries(table.columns.map((name, column) => [name, values[column] ?? null])) };
  });
}

/** A job as an event tells it, which knows neither progress nor what is before it in the queue. */
function merged(row: TableRow, changed: JobSummary): TableRow {
  const before = row.job;
  const waits = changed.state === "queued" && before.state === "queued";
  const job: ListedJob = {
    ...changed,
    progress: changed.attempt === before.attempt ? before.progress : null,
    queue_position: waits ? before.queue_position : null,
    reason: waits && before.reason.message ? before.reason : changed.reason,
  };
  return { job, values: row.values };
}
