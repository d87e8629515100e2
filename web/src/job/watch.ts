// A job as it stands and changes: one stream of events for the whole page, and what has to be fetched when it says so.

import { useEffect, useRef, useState } from "preact/hooks";

import {
  type Attempt,
  type AttemptList,
  ENDED,
  get,
  type JobStatus,
  type LogEvent,
  type MetricEvent,
  Problem,
  type Report,
} from "../api";
import { follow } from "../live";
import { throttled } from "../throttle";

/** Lines from before that a stream begins with; the panes have read those themselves. */
const TAIL = 100;
/** How often a job that waits is asked for its place, which is no change of the job. */
const QUEUE_MS = 5000;

export interface Feed {
  onMetric: (take: (event: MetricEvent) => void) => () => void;
  onLog: (take: (event: LogEvent) => void) => () => void;
  /** Events are missing: what is shown has to be fetched anew. */
  onResync: (take: () => void) => () => void;
}

export interface Watched {
  job: JobStatus | null;
  attempts: Attempt[];
  report: Report | null;
  problem: Problem | null;
  live: boolean;
  deleted: boolean;
  feed: Feed;
}

export function useJob(id: string, logs: number[] | null): Watched {
  const base = `/v1/jobs/${id}`;
  const [job, setJob] = useState<JobStatus | null>(null);
  const [attempts, setAttempts] = useState<Attempt[]>([]);
  const [report, setReport] = useState<Report | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [live, setLive] = useState(true);
  const [deleted, setDeleted] = useState(false);
  const channels = useRef({
    metric: channel<MetricEvent>(),
    log: channel<LogEvent>(),
    resync: channel<void>(),
  }).current;

  const look = useRef({
    job: throttled(async () => {
      try {
        const [found, tried] = await Promise.all([get<JobStatus>(base), get<AttemptList>(`${base}/attempts`)]);
        setJob(found);
        setAttempts(tried.attempts);
      } catch (error) {
        if (error instanceof Problem && error.status === 404) setDeleted(true);
      }
    }),
    report: throttled(async () => {
      try {
        setReport(await get<Report>(`${base}/splits`));
      } catch (error) {
        if (!(error instanceof Problem && error.status === 404)) return;
        // A new attempt has none yet. Of a job that was deleted, the last one stays in sight.
        if (
          await get(base).then(
            () => true,
            () => false,
          )
        )
          setReport(null);
      }
    }),
  }).current;
  const all = () => {
    void look.job();
    void look.report();
    channels.resync.tell();
  };

  useEffect(() => {
    // Shown together when all are there, so that nothing on the page moves while it loads.
    const none: AttemptList = { attempts: [], total: 0 };
    Promise.all([
      get<JobStatus>(base),
      get<Report>(`${base}/splits`).catch(() => null),
      get<AttemptList>(`${base}/attempts`).catch(() => none),
    ]).then(([found, split, tried]) => {
      setAttempts(tried.attempts);
      setReport(split);
      setJob(found);
    }, setProblem);
  }, [id]);

  useEffect(() => {
    const looked = () => !document.hidden && void look.job(); // no stream tells of a job that has ended
    document.addEventListener("visibilitychange", looked);
    window.addEventListener("focus", looked);
    return () => {
      document.removeEventListener("visibilitychange", looked);
      window.removeEventListener("focus", looked);
    };
  }, [id]);

  const ended = job != null && ENDED.has(job.state);
  const wanted = job && !ended ? (logs ?? []).join() : null;
  useEffect(() => {
    if (wanted == null) return;
    return follow(
      `${base}/events?tail=${TAIL}${wanted ? `&logs=${wanted}&stream=all` : ""}`,
      {
        state: () => {
          void look.job();
          void look.report();
        },
        progress: ({ attempt, ...progress }) =>
          setJob((before) => before && (attempt === before.attempt ? { ...before, progress } : before)),
        report: () => void look.report(),
        metric: channels.metric.tell,
        log: channels.log.tell,
        resync: all,
        end: (end: { state: string } | null) => (end?.state === "deleted" ? setDeleted(true) : all()),
      },
      setLive,
    );
  }, [id, wanted]);

  const waits = job?.state === "queued";
  useEffect(() => {
    if (!waits) return;
    const timer = setInterval(() => !document.hidden && void look.job(), QUEUE_MS);
    return () => clearInterval(timer);
  }, [id, waits]);

  const feed = useRef<Feed>({
    onMetric: channels.metric.join,
    onLog: channels.log.join,
    onResync: channels.resync.join,
  });
  return { job, attempts, report, problem, live: live || ended, deleted, feed: feed.current };
}

function channel<T>(): { join: (take: (event: T) => void) => () => void; tell: (event: T) => void } {
  const takers = new Set<(event: T) => void>();
  return {
    join: (take) => {
      takers.add(take);
      return () => takers.delete(take);
    },
    tell: (event) => takers.forEach((take) => take(event)),
  };
}
