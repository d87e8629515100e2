import { useEffect, useState } from "preact/hooks";

import { get, type JobList, type JobStatus, type JobSummary, Problem, type Report } from "../api";
import { asked } from "../format";
import { Bars, scaleOf } from "../parts/Bars";
import { type Diff, DiffTable } from "../parts/DiffTable";
import { type By, largest } from "../parts/measures";
import { BySwitch, SplitMap } from "../parts/SplitMap";
import { StateMark } from "../parts/State";
import { go, Link, place, withQuery } from "../router";
import { outputDevice } from "./Job";

interface Side {
  job: JobStatus;
  report: Report | null;
}

const RECENT = 100;

export function ComparePage() {
  const ids = ["a", "b"].map((name) => place.value.searchParams.get(name) ?? "");
  const [recent, setRecent] = useState<JobSummary[]>([]);
  const [sides, setSides] = useState<(Side | null)[]>([null, null]);
  const [diff, setDiff] = useState<Diff | null>(null);
  const [problem, setProblem] = useState("");
  const [by, setBy] = useState<By>("rows");
  useEffect(() => {
    document.title = "Compare: Shardyard";
    void get<JobList>(`/v1/jobs?limit=${RECENT}`).then(
      (found) => setRecent(found.jobs),
      () => {},
    );
  }, []);
  useEffect(() => {
    let over = false;
    setProblem("");
    setDiff(null);
    const failed = (error: Problem) => !over && setProblem(error.message);
    Promise.all(ids.map((id) => (id ? side(id) : null))).then((found) => {
      if (over) return;
      setSides(found);
      if (found.every((one) => one?.report))
        get<Diff>(`/v1/jobs/${ids[0]}/splits/diff?against=${ids[1]}`).then((found) => !over && setDiff(found), failed);
    }, failed);
    return () => {
      over = true;
    };
  }, [ids.join()]);
  const reports = sides.flatMap((one) => one?.report ?? []);
  return (
    <>
      <div class="row head">
        <h1>Compare two runs</h1>
        <span class="grow" />
        {reports.length > 0 && <BySwitch by={by} setBy={setBy} />}
        {diff && (
          <a class="button" href={`/v1/jobs/${ids[0]}/splits/diff?against=${ids[1]}`} target="_blank" rel="noopener">
            As a file
          </a>
        )}
      </div>
      {problem && (
        <div class="notice bad" role="alert">
          {problem}
        </div>
      )}
      <div class="columns even">
        {["a", "b"].map((name, n) => (
          <div key={name} class="panel">
            <Choice
              title={n ? "against" : "this run"}
              id={ids[n]!}
              recent={recent}
              choose={(id) => go(withQuery({ [name]: id }), "replace")}
            />
            {sides[n] && ids[n] && (
              <SideOf side={sides[n]} by={by} most={largest(by, reports)} scale={scaleOf(reports)} />
            )}
          </div>
        ))}
      </div>
      {diff && (
        <section class="panel below">
          <DiffTable diff={diff} />
        </section>
      )}
    </>
  );
}

function Choice(props: { title: string; id: string; recent: JobSummary[]; choose: (id: string) => void }) {
  const { id, recent } = props;
  return (
    <label class="choice">
      {props.title}
      <select value={id} onChange={(event) => props.choose(event.currentTarget.value)}>
        <option value="">choose a job</option>
        {id && !recent.some((job) => job.id === id) && <option value={id}>{id}</option>}
        {recent.map((job) => (
          <option key={job.id} value={job.id}>
            {job.name.slice(0, 60)} ({job.strategy} on {asked(job)}, {job.state})
          </option>
        ))}
      </select>
    </label>
  );
}

function SideOf(props: { side: Side; by: By; most: number | null; scale: { times: number; primitives: number } }) {
  const { job, report } = props.side;
  return (
    <>
      <p class="row">
        <Link to={`/jobs/${job.id}`} class="name">
          <bdi>{job.name}</bdi>
        </Link>
        <StateMark state={job.state} />
        <span class="muted">
          {job.strategy} on {asked(job)}
        </span>
      </p>
      {report ? (
        <>
          <SplitMap report={report} outputDevice={outputDevice(job)} by={props.by} most={props.most} />
          <Bars report={report} scale={props.scale} />
        </>
      ) : (
        <p class="muted">No report{job.attempt ? "" : ": it has not begun"}.</p>
      )}
    </>
  );
}

async function side(id: string): Promise<Side> {
  const job = await get<JobStatus>(`/v1/jobs/${encodeURIComponent(id)}`);
  const report = await get<Report>(`/v1/jobs/${id}/splits`).catch(() => null);
  return { job, report };
}
