import { useEffect, useRef, useState } from "preact/hooks";

import { ENDED, type Attempt, type JobStatus, Problem, type Report, type Series, call, follow, get, may, post } from "../api";
import { between, bytes, clock, count, duration, number, percent } from "../format";
import { Bars } from "../parts/Bars";
import { Curves } from "../parts/Curves";
import { Findings } from "../parts/Findings";
import { Logs } from "../parts/Logs";
import { SplitMap } from "../parts/SplitMap";
import { ProgressBar, StateMark, WhyText } from "../parts/State";
import { Link, go } from "../router";
import { attempt } from "../toast";
import { useClock } from "./Jobs";

const POINTS = 400;
/** The least time between two looks at the same thing. */
const PAUSE_MS = 1000;

export function JobPage(props: { id: string }) {
  const base = `/v1/jobs/${props.id}`;
  const [job, setJob] = useState<JobStatus | null>(null);
  const [report, setReport] = useState<Report | null>(null);
  const [series, setSeries] = useState<Series[]>([]);
  const [attempts, setAttempts] = useState<Attempt[]>([]);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [live, setLive] = useState(true);

  const look = useRef({
    job: throttled(async () => {
      setJob(await get<JobStatus>(base));
      setAttempts((await get<{ attempts: Attempt[] }>(`${base}/attempts`)).attempts);
    }),
    report: throttled(async () => setReport(await getOrNull<Report>(`${base}/splits`))),
    series: throttled(async () => setSeries((await getOrNull<{ series: Series[] }>(`${base}/metrics?points=${POINTS}`))?.series ?? [])),
  }).current;

  useEffect(() => {
    document.title = "Shardyard";
    get<JobStatus>(base).then(setJob, setProblem);
    void look.job();
    void look.report();
    void look.series();
    return follow(
      `${base}/events`,
      {
        state: () => {
          void look.job();
          void look.report();
        },
        progress: (progress) => setJob((before) => before && { ...before, progress: { ...before.progress, ...progress } }),
        report: () => void look.report(),
        metric: () => void look.series(),
        resync: () => {
          void look.job();
          void look.report();
          void look.series();
        },
        end: () => {
          void look.job();
          void look.report();
          void look.series();
        },
      },
      setLive,
    );
  }, [props.id]);
  useEffect(() => {
    if (job) document.title = `${job.name}: ${job.state}`;
  }, [job?.name, job?.state]);

  if (problem) return <div class="notice bad" role="alert">{problem.message} <Link to="/">All jobs</Link></div>;
  if (!job) return <p class="muted">Loading …</p>;
  const running = !ENDED.has(job.state);
  return (
    <>
      <Head job={job} live={live || !running} />
      {job.error && <Failure job={job} />}
      <div class="columns">
        <div>
          <section class="panel" aria-label="Findings and split">
            {report ? (
              <>
                <Findings findings={report.findings} running={running} />
                <div class="gap" />
                <SplitMap report={report} outputDevice={outputDevice(job)} />
              </>
            ) : <p class="muted">The report begins with the first step{job.state === "queued" ? "; the job waits" : ""}.</p>}
          </section>
          {report && <section class="panel"><Bars report={report} /></section>}
          {report && <section class="panel"><Memory report={report} /></section>}
        </div>
        <div>
          <section class="panel"><h2>Curves</h2><Curves series={series} /></section>
          <section class="panel"><Facts job={job} /></section>
          <section class="panel"><Timeline attempts={attempts} job={job} /></section>
        </div>
      </div>
      <section class="panel below"><Logs id={props.id} attempt={job.attempt} devices={job.devices} running={running} /></section>
      <div class="columns below">
        <div><section class="panel"><Artifacts id={props.id} state={job.state} /></section></div>
        <div><section class="panel"><details><summary>Spec</summary><pre>{JSON.stringify(job.spec, null, 2)}</pre></details>{report && <Notes notes={report.notes} />}</section></div>
      </div>
    </>
  );
}

function Head(props: { job: JobStatus; live: boolean }) {
  const { job } = props;
  const now = useClock();
  const running = !ENDED.has(job.state);
  const act = (does: string, after?: (answer: JobStatus) => void) => () =>
    attempt(async () => {
      const answer = await post<JobStatus>(`/v1/jobs/${job.id}/${does}`, undefined, does === "resubmit" ? { "Idempotency-Key": crypto.randomUUID() } : {});
      after?.(answer);
    });
  const remove = () => {
    if (!window.confirm(`Delete ${job.name} with its logs, report and files?`)) return;
    void attempt(async () => {
      await call("DELETE", `/v1/jobs/${job.id}`);
      go("/");
    });
  };
  return (
    <div class="job-head">
      <div class="row">
        <h1><bdi>{job.name}</bdi></h1>
        <span aria-live="polite"><StateMark state={job.state} cancelling={job.cancel_requested && running} /></span>
        <WhyText job={job} />
        <span class="grow" />
        {!props.live && <span class="muted" role="status">not live: connecting again …</span>}
        <Link to={`/compare?a=${job.id}`} class="button">Compare</Link>
        <a class="button" href={`/v1/jobs/${job.id}/splits?format=html`} target="_blank" rel="noopener">As a file</a>
        {may("submit") && running && <button class="risky" disabled={job.cancel_requested} onClick={act("cancel")}>Cancel</button>}
        {may("submit") && <button onClick={act("resubmit", (answer) => go(`/jobs/${answer.id}`))}>Submit again</button>}
        {may("submit") && !running && <button class="risky" onClick={remove}>Delete</button>}
      </div>
      <div class="row muted">
        <span>{job.strategy} on {job.devices} {job.placement[0] ? `(${job.placement[0].devices.join(", ")} of ${job.placement[0].node})` : `in pool ${job.pool}`}</span>
        {job.queue_position != null && <span>place {job.queue_position} in the queue</span>}
        {job.attempt > 1 && <span>attempt {job.attempt}</span>}
        {job.started_at && <span>{running ? "running for" : "took"} {duration(between(job.started_at, job.finished_at, now))}</span>}
        {job.result?.loss != null && <span>loss {number(job.result.loss)}</span>}
        {Object.entries(job.result?.metrics ?? {}).map(([name, value]) => <span key={name}>{name} {number(value)}</span>)}
        {job.retry_at && running && <span>tries again at {clock(job.retry_at)}</span>}
        {job.checkpoint && <span>checkpoint at step {count(job.checkpoint.step)}</span>}
      </div>
      {running && <ProgressBar progress={job.progress} running />}
    </div>
  );
}

function Failure(props: { job: JobStatus }) {
  const { error } = props.job;
  if (!error) return null;
  return (
    <div class="notice bad">
      <b>{props.job.reason.code.replaceAll("_", " ")}</b>{error.rank != null && ` in rank ${error.rank}`}: <span dir="auto">{error.message ?? props.job.reason.message}</span>
      {error.advice && <p dir="auto">→ {error.advice}</p>}
      {error.traceback && <details><summary>Traceback</summary><pre>{error.traceback}</pre></details>}
    </div>
  );
}

function Facts(props: { job: JobStatus }) {
  const { job } = props;
  const facts: [string, string][] = [
    ["id", job.id],
    ["batch", job.batch_size == null ? "the script decides" : `${count(job.batch_size)} from one DataLoader, ${count(job.global_batch_size)} in one step`],
    ["submitted", clock(job.created_at)],
    ["first step", job.first_step_at ? `${clock(job.first_step_at)}, ${duration(between(job.created_at, job.first_step_at, 0))} after it was submitted` : "–"],
    ["start", job.start],
    ["retries", `${job.retries} of ${job.max_retries}${job.losses ? `; ${job.losses} lost to failures of the service` : ""}`],
    ["labels", Object.entries(job.labels).map(([name, value]) => `${name}=${value}`).join(", ") || "–"],
  ];
  return (
    <>
      <h2>Job</h2>
      <dl class="facts">{facts.map(([name, value]) => <><dt>{name}</dt><dd dir="auto">{value}</dd></>)}</dl>
    </>
  );
}

function Timeline(props: { attempts: Attempt[]; job: JobStatus }) {
  return (
    <>
      <h2>Attempts</h2>
      <div class="scroll"><table>
        <thead><tr><th class="n" scope="col">#</th><th scope="col">Where</th><th scope="col">Started</th><th class="n" scope="col">Ran</th><th scope="col">Ended</th></tr></thead>
        <tbody>
          {[...props.attempts].reverse().map((one) => (
            <tr key={one.attempt}>
              <td class="n">{one.attempt}</td>
              <td>{one.placement[0]?.node ?? "–"}</td>
              <td>{clock(one.started_at)}{one.resumed_from && <div class="muted">from step {count(one.resumed_from.step)}</div>}</td>
              <td class="n">{one.started_at ? duration(between(one.started_at, one.ended_at, Date.now())) : "–"}</td>
              <td>{one.reason ? one.reason.code.replaceAll("_", " ") : one.state}{one.reason?.message && <div class="muted" dir="auto">{one.reason.message}</div>}</td>
            </tr>
          ))}
        </tbody>
      </table></div>
      {props.attempts.length === 0 && <p class="muted">None yet: the job waits for its devices.</p>}
    </>
  );
}

function Memory(props: { report: Report }) {
  const { report } = props;
  const skew = report.balance.output_device_memory_skew;
  return (
    <>
      <h2>Devices</h2>
      <div class="scroll"><table>
        <thead><tr><th scope="col">Device</th><th class="n" scope="col">Rows</th><th class="n" scope="col">Share</th><th class="n" scope="col">Steps</th><th class="n" scope="col">Idle</th><th class="n" scope="col">ms a row</th><th class="n" scope="col">Peak memory</th></tr></thead>
        <tbody>
          {report.per_device.map((one) => {
            const device = report.devices.find((found) => found.device === one.device);
            return (
              <tr key={one.device}>
                <td title={device?.name}>{one.device} <span class="muted">{device && device.id.length <= 8 ? device.id : device?.name}{device ? `, rank ${device.rank}` : ""}</span></td>
                <td class="n">{count(one.rows)}</td><td class="n">{percent(one.share)}</td><td class="n">{count(one.steps)}</td>
                <td class="n">{one.idle_steps ? <b>{count(one.idle_steps)}</b> : 0}</td><td class="n">{number(one.ms_per_row)}</td>
                <td class="n">{bytes(one.memory_peak_bytes)}{device?.memory_total_bytes && one.memory_peak_bytes ? <span class="muted"> of {bytes(device.memory_total_bytes)}</span> : null}</td>
              </tr>
            );
          })}
        </tbody>
      </table></div>
      {skew != null && <p class="muted">The output device has {number(skew)} times the peak memory of the others.</p>}
    </>
  );
}

interface File {
  path: string;
  bytes: number;
  modified_at: string;
}

function Artifacts(props: { id: string; state: string }) {
  const [files, setFiles] = useState<File[] | null>(null);
  useEffect(() => {
    get<{ artifacts: File[] }>(`/v1/jobs/${props.id}/artifacts`).then((found) => setFiles(found.artifacts), () => setFiles([]));
  }, [props.id, props.state]);
  return (
    <>
      <h2>Files</h2>
      {files?.length === 0 && <p class="muted">None. A script keeps files in <code>job.output_dir()</code>.</p>}
      <div class="scroll"><table><tbody>
        {files?.slice(0, 200).map((file) => (
          <tr key={file.path}>
            <td><a href={`/v1/jobs/${props.id}/artifacts/${file.path.split("/").map(encodeURIComponent).join("/")}`} download><bdi>{file.path}</bdi></a></td>
            <td class="n">{bytes(file.bytes)}</td><td class="muted">{clock(file.modified_at)}</td>
          </tr>
        ))}
      </tbody></table></div>
    </>
  );
}

function Notes(props: { notes: Record<string, string> }) {
  const notes = Object.entries(props.notes);
  if (!notes.length) return null;
  return (
    <details>
      <summary>What could not be measured, and why</summary>
      <dl class="facts notes">{notes.map(([field, why]) => <><dt class="mono">{field}</dt><dd dir="auto">{why}</dd></>)}</dl>
    </details>
  );
}

function outputDevice(job: JobStatus): number | null {
  const spec = job.spec as { parallelism?: { strategy?: string; output_device?: number } };
  return spec.parallelism?.strategy === "dp" && job.devices > 1 ? (spec.parallelism.output_device ?? 0) : null;
}

async function getOrNull<T>(path: string): Promise<T | null> {
  try {
    return await get<T>(path);
  } catch (error) {
    if (error instanceof Problem && (error.status === 404 || error.status === 0 || error.status >= 500)) return null;
    throw error;
  }
}

/** Run `look` at once, and then at most once in a pause however often it is asked for; the last wish is kept. */
function throttled(look: () => Promise<void>): () => Promise<void> {
  let busy = false;
  let again = false;
  const run = async (): Promise<void> => {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      await look();
    } catch {
      // The next change asks again; the page goes on showing what it knew.
    }
    setTimeout(() => {
      busy = false;
      if (again) {
        again = false;
        void run();
      }
    }, PAUSE_MS);
  };
  return run;
}
