import { useEffect, useState } from "preact/hooks";

import { ENDED, get, type JobStatus, type LogPage } from "../api";
import { between, clock, count, duration } from "../format";
import { Link } from "../router";

const NETWORKS: Record<string, string> = { none: "none: its own loopback only", host: "the node's" };

export function Facts(props: { job: JobStatus }) {
  const { job } = props;
  const facts: [string, string][] = [
    ["id", job.id],
    ["owner", job.owner ? `${job.owner} of tenant ${job.tenant}` : `tenant ${job.tenant}`],
    [
      "batch",
      job.batch_size == null
        ? "the script decides"
        : `${count(job.batch_size)} from one DataLoader, ${count(job.global_batch_size)} in one step`,
    ],
    ["submitted", clock(job.created_at)],
    [
      "first step",
      job.first_step_at
        ? `${clock(job.first_step_at)}, ${duration(between(job.created_at, job.first_step_at, 0))} after it was submitted`
        : "–",
    ],
    ["start", job.start],
    ["network", job.network ? (NETWORKS[job.network] ?? job.network) : "–"],
    [
      "retries",
      `${job.retries} of ${job.max_retries}${job.losses ? `; ${job.losses} lost to failures of the service` : ""}`,
    ],
    [
      "labels",
      Object.entries(job.labels)
        .map(([name, value]) => `${name}=${value}`)
        .join(", ") || "–",
    ],
  ];
  return (
    <>
      <h2>Job</h2>
      <dl class="facts">
        {facts.map(([name, value]) => (
          <>
            <dt key={name}>{name}</dt>
            <dd dir="auto">{value}</dd>
          </>
        ))}
        {job.parent_id && (
          <>
            <dt>submitted again from</dt>
            <dd>
              <Link to={`/jobs/${job.parent_id}`}>{job.parent_id}</Link>
            </dd>
          </>
        )}
      </dl>
    </>
  );
}

/** Lines that are shown of what came before a failure. */
const LAST_LINES = 20;
/** What torch.distributed prints in front of the lines of a traceback. */
const RANK_PREFIX = /^\[rank\d+\]: ?/;

export function Failure(props: { job: JobStatus }) {
  const { error } = props.job;
  if (!error) return null;
  return (
    <div class="notice bad">
      <b>{props.job.reason.code.replaceAll("_", " ")}</b>
      {error.rank != null && ` in rank ${error.rank}`}:{" "}
      <span dir="auto">{error.message ?? props.job.reason.message}</span>
      {error.advice && <p dir="auto">→ {error.advice}</p>}
      {error.traceback && (
        <details open>
          <summary>Traceback</summary>
          <pre tabIndex={0}>{error.traceback}</pre>
        </details>
      )}
      {ENDED.has(props.job.state) && <LastLines job={props.job} traceback={error.traceback ?? ""} />}
    </div>
  );
}

/** What the rank that failed printed last, without the traceback, which stands above. */
function LastLines(props: { job: JobStatus; traceback: string }) {
  const { job } = props;
  const [lines, setLines] = useState<string[]>([]);
  const trace = new Set(props.traceback.split("\n").map((line) => line.trimEnd()));
  useEffect(() => {
    const wanted = new URLSearchParams({
      attempt: String(job.attempt),
      stream: "stdout,stderr",
      tail: String(LAST_LINES + trace.size),
    });
    if (job.error?.rank != null) wanted.set("device", String(job.error.rank));
    get<LogPage>(`/v1/jobs/${job.id}/logs?${wanted}`).then(
      (page) => {
        const texts = page.lines.map((line) => line.text);
        while (texts.length && trace.has(texts.at(-1)!.replace(RANK_PREFIX, "").trimEnd())) texts.pop();
        setLines(texts.slice(-LAST_LINES));
      },
      () => undefined,
    );
  }, [job.id, job.attempt, job.state]);
  if (!lines.length) return null;
  return (
    <>
      <p class="muted">The last lines that it printed{props.traceback && " before that"}:</p>
      <pre tabIndex={0}>{lines.join("\n")}</pre>
    </>
  );
}

export function Notes(props: { notes: Record<string, string> }) {
  const fields = new Map<string, string[]>();
  for (const [field, note] of Object.entries(props.notes).sort()) {
    for (const reason of note.split("; ")) fields.set(reason, [...(fields.get(reason) ?? []), field]);
  }
  if (!fields.size) return null;
  return (
    <details>
      <summary>What could not be measured, and why</summary>
      <ul class="notes">
        {[...fields].map(([why, named]) => (
          <li key={why}>
            <span dir="auto">{why}</span> <span class="mono muted">{named.join(", ")}</span>
          </li>
        ))}
      </ul>
    </details>
  );
}
