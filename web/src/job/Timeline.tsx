// When each attempt waited, started and ran, on one axis of time.

import type { Attempt, JobStatus } from "../api";
import { useClock } from "../clock";
import { between, clock, count, duration, leader } from "../format";

/** Attempts that are drawn: the newest. */
const SHOWN = 12;
/** Parts shorter than this share of the whole are drawn so long all the same. */
const LEAST = 0.004;

/** What a script goes on from has no step: its log and report say it, its attempts do not. */
const ofScript = (job: JobStatus) => (job.spec as { program?: { kind?: string } } | null)?.program?.kind === "script";

interface Part {
  kind: "waited" | "starting" | "running";
  from: number;
  to: number;
}

export function Timeline(props: { attempts: Attempt[]; job: JobStatus }) {
  const { attempts, job } = props;
  const now = useClock();
  const shown = attempts.slice(-SHOWN);
  const over = job.finished_at ? Date.parse(job.finished_at) : now;
  const begin = shown.length < attempts.length ? Date.parse(shown[0]!.created_at) : Date.parse(job.created_at);
  const whole = Math.max(over - begin, 1);
  return (
    <>
      <h2>
        Attempts{" "}
        <small>
          {shown.length < attempts.length ? `the newest ${SHOWN} of ${attempts.length}; ` : ""}
          {duration(whole / 1000)} since {clock(new Date(begin).toISOString())}
        </small>
      </h2>
      <ol class="attempts">
        {shown.map((one, n) => {
          const before = n ? Date.parse(shown[n - 1]!.ended_at ?? one.created_at) : begin;
          const parts = partsOf(one, before, over);
          return (
            <li key={one.attempt}>
              <div class="row">
                <b>{one.attempt}</b>
                <span class={outcome(one)}>{one.reason ? one.reason.code.replaceAll("_", " ") : "now"}</span>
                <span class="muted">
                  {leader(one.placement)} ·{" "}
                  {one.started_at ? `ran ${duration(between(one.started_at, one.ended_at, now))}` : "did not start"}
                  {one.resumed_from
                    ? ` · from step ${count(one.resumed_from.step)} of attempt ${one.resumed_from.attempt}`
                    : (n || one.attempt > 1) && !ofScript(job)
                      ? " · from the beginning"
                      : ""}
                  {one.network === "none" ? " · no network" : ""}
                </span>
              </div>
              <div
                class="track"
                role="img"
                aria-label={parts.map((part) => `${part.kind} ${duration((part.to - part.from) / 1000)}`).join(", ")}
              >
                {parts.map((part) => {
                  const width = Math.max((part.to - part.from) / whole, LEAST);
                  return (
                    <span
                      key={part.kind}
                      class={`t-${part.kind}`}
                      title={`${part.kind} ${duration((part.to - part.from) / 1000)}, from ${clock(new Date(part.from).toISOString())}`}
                      style={{
                        insetInlineStart: `${(Math.min((part.from - begin) / whole, 1 - width) * 100).toFixed(3)}%`,
                        width: `${(width * 100).toFixed(3)}%`,
                      }}
                    />
                  );
                })}
                {one.resumed_from && one.started_at && (
                  <i
                    class="resumed"
                    style={{
                      insetInlineStart: `${(((Date.parse(one.started_at) - begin) / whole) * 100).toFixed(3)}%`,
                    }}
                    title={`went on from step ${one.resumed_from.step}`}
                  />
                )}
              </div>
              {one.reason?.message && one.reason.code !== "completed" && (
                <div class="muted small" dir="auto">
                  {one.reason.message}
                </div>
              )}
            </li>
          );
        })}
      </ol>
      {attempts.length === 0 && <p class="muted">None yet: the job waits for its devices.</p>}
      {attempts.length > 0 && (
        <div class="key">
          <span>
            <i class="t-waited" />
            waiting
          </span>
          <span>
            <i class="t-starting" />
            starting
          </span>
          <span>
            <i class="t-running" />
            running
          </span>
          {shown.some((one) => one.resumed_from) && (
            <span>
              <i class="resumed" />
              went on from a checkpoint
            </span>
          )}
        </div>
      )}
    </>
  );
}

function partsOf(one: Attempt, before: number, over: number): Part[] {
  const leased = Date.parse(one.created_at);
  const ended = one.ended_at ? Date.parse(one.ended_at) : over;
  const ran = one.started_at ? Date.parse(one.started_at) : ended;
  const parts: Part[] = [
    { kind: "waited", from: before, to: leased },
    { kind: "starting", from: leased, to: ran },
    { kind: "running", from: ran, to: ended },
  ];
  return parts.filter((part) => part.to > part.from);
}

/** Ends that somebody wanted. */
const WANTED: ReadonlySet<string> = new Set(["cancelled_by_user", "drained", "service_stopped"]);
const outcome = (one: Attempt) =>
  one.reason == null || one.reason.code === "completed" ? "" : WANTED.has(one.reason.code) ? "muted" : "bad";
