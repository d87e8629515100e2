import { useEffect, useRef, useState } from "preact/hooks";

import { ENDED, type JobStatus, type JobSummary, Problem, follow, get, may, post } from "../api";
import { between, clock, duration } from "../format";
import { ProgressBar, StateMark, WhyText } from "../parts/State";
import { Link, go, place, withQuery } from "../router";
import { attempt } from "../toast";

const PAGE = 50;
/** Running jobs of the list whose progress is looked at. */
const WATCHED = 12;
const LOOK_MS = 2000;
/** New jobs that come together are shown together. */
const GATHER_MS = 300;
/** How often the list is asked for while no stream tells of changes. */
const UNLIVE_MS = 4000;
const STATES = ["queued", "starting", "running", "succeeded", "failed", "cancelled"];
const FILTERS = ["state", "pool", "label", "name", "archived"];

interface Page {
  jobs: JobSummary[];
  next: string | null;
}

export function JobsPage() {
  const query = place.value.searchParams;
  const wanted = new URLSearchParams(FILTERS.flatMap((name) => (query.get(name) ? [[name, query.get(name)!]] : [])));
  const key = wanted.toString();
  const [jobs, setJobs] = useState<JobSummary[] | null>(null);
  const [next, setNext] = useState<string | null>(null);
  const [problem, setProblem] = useState("");
  const [live, setLive] = useState(false);
  const [fresh, setFresh] = useState(0);
  const now = useClock();
  const progress = useProgress(jobs ?? []);
  const known = useRef<JobSummary[]>([]);
  known.current = jobs ?? [];

  const load = async (after: string | null) => {
    const page = new URLSearchParams(wanted);
    page.set("limit", String(PAGE));
    if (after) page.set("after", after);
    try {
      const found = await get<Page>(`/v1/jobs?${page}`);
      setJobs((before) => (after && before ? [...before, ...found.jobs] : found.jobs));
      setNext(found.next);
      setProblem("");
      if (!after) setFresh(0);
    } catch (error) {
      setProblem(error instanceof Problem ? error.message : String(error));
    }
  };

  useEffect(() => {
    setJobs(null);
    void load(null);
    return follow(
      "/v1/events",
      {
        job: (changed: JobSummary) => {
          const listed = known.current;
          if (listed.some((job) => job.id === changed.id)) setJobs((before) => before && before.map((job) => (job.id === changed.id ? changed : job)));
          else if (changed.created_at >= (listed[0]?.created_at ?? "")) setFresh((count) => count + 1);
        },
        gone: (gone: { job_id: string }) => setJobs((before) => before && before.filter((job) => job.id !== gone.job_id)),
        resync: () => void load(null),
      },
      setLive,
    );
  }, [key]);
  useEffect(() => {
    if (live || !jobs) return;
    const timer = setInterval(() => next === null && jobs.length <= PAGE && void load(null), UNLIVE_MS);
    return () => clearInterval(timer);
  }, [live, jobs?.length, next]);
  useEffect(() => {
    if (!fresh || window.scrollY >= 40) return; // nothing moves under the eyes of who has scrolled down
    const timer = setTimeout(() => void load(null), GATHER_MS);
    return () => clearTimeout(timer);
  }, [fresh]);

  return (
    <>
      <div class="row head">
        <h1>Jobs</h1>
        <Filters />
        <span class="grow" />
        {!live && <span class="muted">not live</span>}
        {fresh > 0 && <button onClick={() => load(null)}>{fresh} new</button>}
        {may("submit") && <Link to="/submit" class="button">Submit a job</Link>}
      </div>
      {problem && <div class="notice bad" role="alert">{problem}</div>}
      {jobs && jobs.length === 0 && !problem && <Empty filtered={key !== ""} />}
      {jobs && jobs.length > 0 && (
        <div class="scroll">
          <table class="jobs">
            <thead>
              <tr><th scope="col">Job</th><th scope="col">State</th><th scope="col">Progress</th><th scope="col">Devices</th><th scope="col">Pool</th><th scope="col">Submitted</th><th scope="col" class="n">Took</th></tr>
            </thead>
            <tbody>
              {jobs.map((job) => (
                <tr key={job.id}>
                  <td><Link to={`/jobs/${job.id}`} class="name"><bdi>{job.name}</bdi></Link><Labels labels={job.labels} /></td>
                  <td><StateMark state={job.state} cancelling={job.cancel_requested && !ENDED.has(job.state)} /><div class="why"><WhyText job={job} /></div></td>
                  <td class="progress">{job.state === "running" && <ProgressBar progress={progress.get(job.id) ?? null} running />}</td>
                  <td>{job.strategy} on {job.devices}{job.placement[0] && <div class="muted">{job.placement[0].node}</div>}</td>
                  <td>{job.pool}</td>
                  <td title={job.created_at}>{clock(job.created_at)}</td>
                  <td class="n">{duration(between(job.started_at, job.finished_at, now))}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {next && <p class="more"><button onClick={() => load(next)}>Older jobs</button></p>}
    </>
  );
}

function Filters() {
  const query = place.value.searchParams;
  const set = (name: string) => (event: { currentTarget: { value: string } }) => go(withQuery({ [name]: event.currentTarget.value }), "replace");
  const cancelAll = () => {
    const chosen = Object.fromEntries(["state", "pool", "label", "name"].flatMap((name) => (query.get(name) ? [[name, query.get(name)!]] : [])));
    const words = Object.entries(chosen).map(([name, value]) => `${name} ${value}`).join(", ") || "every job of yours that has not ended";
    if (window.confirm(`Cancel ${words}?`)) void attempt(() => post("/v1/jobs/cancel", Object.keys(chosen).length ? chosen : { all: true }));
  };
  return (
    <>
      <label>State
        <select value={query.get("state") ?? ""} onChange={set("state")}>
          <option value="">any</option>
          {STATES.map((state) => <option key={state}>{state}</option>)}
        </select>
      </label>
      <label>Name <input type="search" value={query.get("name") ?? ""} size={16} placeholder="exact name" onChange={set("name")} /></label>
      <label>Label <input type="search" value={query.get("label") ?? ""} size={12} placeholder="key=value" onChange={set("label")} /></label>
      <label>Pool <input type="search" value={query.get("pool") ?? ""} size={8} onChange={set("pool")} /></label>
      <label><input type="checkbox" checked={query.get("archived") === "true"} onChange={(event) => go(withQuery({ archived: event.currentTarget.checked ? "true" : "" }), "replace")} /> archived</label>
      {may("submit") && !ENDED.has((query.get("state") ?? "") as "failed") && query.get("archived") !== "true" && <button class="risky" onClick={cancelAll}>Cancel these …</button>}
    </>
  );
}

function Labels(props: { labels: Record<string, string> }) {
  const labels = Object.entries(props.labels);
  if (!labels.length) return null;
  return (
    <div>
      {labels.slice(0, 4).map(([name, value]) => (
        <Link key={name} to={withQuery({ label: `${name}=${value}` })} class="label"><bdi>{name}={value}</bdi></Link>
      ))}
    </div>
  );
}

function Empty(props: { filtered: boolean }) {
  if (props.filtered) return <p>No job matches. <Link to="/">Show all</Link></p>;
  return (
    <div class="notice">
      No jobs yet. <Link to="/submit">Submit one here</Link>, or from a terminal: <code>shardyard submit job.json --watch</code>
    </div>
  );
}

/** Progress of the running jobs that are shown, looked at every so often: lists do not carry it. */
function useProgress(jobs: JobSummary[]): Map<string, JobStatus["progress"]> {
  const [found, setFound] = useState(new Map<string, JobStatus["progress"]>());
  const running = jobs.filter((job) => job.state === "running").slice(0, WATCHED).map((job) => job.id);
  useEffect(() => {
    if (!running.length) return;
    let over = false;
    const look = async () => {
      const answers = await Promise.allSettled(running.map((id) => get<JobStatus>(`/v1/jobs/${id}`)));
      if (over) return;
      setFound(new Map(answers.flatMap((answer) => (answer.status === "fulfilled" ? [[answer.value.id, answer.value.progress] as const] : []))));
    };
    void look();
    const timer = setInterval(() => document.visibilityState === "visible" && void look(), LOOK_MS);
    return () => {
      over = true;
      clearInterval(timer);
    };
  }, [running.join()]);
  return found;
}

export function useClock(): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}
