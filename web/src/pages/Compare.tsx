import { useEffect, useState } from "preact/hooks";

import { get, type JobList, type JobStatus, type ListedJob, Problem, type Report } from "../api";
import { Outcomes, type Run, SpecDiff } from "../compare/Outcomes";
import { Overlay } from "../compare/Overlay";
import { MOST_COMPARED, runsOf } from "../compare/runs";
import { asked } from "../format";
import { Bars, scaleOf } from "../parts/Bars";
import { type Diff, DiffTable } from "../parts/DiffTable";
import { type By, largest } from "../parts/measures";
import { BySwitch, SplitMap } from "../parts/SplitMap";
import { go, Link, place } from "../router";
import { outputDevice } from "./Job";

const RECENT = 100;
/** Lines of runs, of which eight can be told apart in both themes. */
const COLOURS = ["#2f7fd6", "#d9772b", "#1f9d72", "#b74fb0", "#c2404f", "#8a7a1f", "#5f6bd0", "#7b8794"];

export function ComparePage() {
  const ids = runsOf(place.value.searchParams);
  const key = ids.join();
  const [recent, setRecent] = useState<ListedJob[]>([]);
  const [runs, setRuns] = useState<readonly Run[]>([]);
  const [problem, setProblem] = useState("");
  const set = (next: readonly string[]) => go(next.length ? `/compare?jobs=${next.join(",")}` : "/compare", "replace");
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
    Promise.all(ids.map(readRun)).then(
      (found) => !over && setRuns(found),
      (error: unknown) => !over && setProblem(error instanceof Problem ? error.message : String(error)),
    );
    return () => {
      over = true;
    };
  }, [key]);
  const others = recent.filter((job) => !ids.includes(job.id));
  return (
    <>
      <div class="row head">
        <h1>Compare runs</h1>
        <label>
          Add{" "}
          <select
            value=""
            disabled={ids.length >= MOST_COMPARED}
            onChange={(event) => event.currentTarget.value && set([...ids, event.currentTarget.value])}
          >
            <option value="">{ids.length >= MOST_COMPARED ? `${MOST_COMPARED} at most` : "a job"}</option>
            {others.map((job) => (
              <option key={job.id} value={job.id}>
                {(job.name || job.id).slice(0, 60)} ({job.strategy} on {asked(job)}, {job.state}, {job.id.slice(-8)})
              </option>
            ))}
          </select>
        </label>
        <span class="muted">
          or choose several in the <Link to="/">list of jobs</Link>
        </span>
      </div>
      {problem && (
        <div class="notice bad" role="alert">
          {problem}
        </div>
      )}
      {runs.length > 0 && (
        <>
          <section class="panel" aria-label="Runs">
            <Outcomes runs={runs} remove={(id) => set(ids.filter((one) => one !== id))} />
          </section>
          {runs.length > 1 && (
            <section class="panel below">
              <h2>In what their specs differ</h2>
              <SpecDiff runs={runs} />
            </section>
          )}
          <section class="panel below">
            <h2>Curves</h2>
            <Overlay runs={runs} />
          </section>
          {runs.length > 1 && <Splits runs={runs} />}
        </>
      )}
    </>
  );
}

/** What each device got in the runs, on one scale, and the first two of them in numbers. */
function Splits(props: { runs: readonly Run[] }) {
  const { runs } = props;
  const [by, setBy] = useState<By>("rows");
  const [diff, setDiff] = useState<Diff | null>(null);
  const reports = runs.flatMap((one) => one.report ?? []);
  const [first, second] = runs;
  const pair =
    runs.length === 2 && first?.report && second?.report ? `${first.job.id}/splits/diff?against=${second.job.id}` : "";
  useEffect(() => {
    setDiff(null);
    if (pair) void get<Diff>(`/v1/jobs/${pair}`).then(setDiff, () => {});
  }, [pair]);
  if (!reports.length) return null;
  const scale = scaleOf(reports);
  const most = largest(by, reports);
  return (
    <>
      <div class="row head below">
        <h2 class="grow">Splits, on one scale</h2>
        <BySwitch by={by} setBy={setBy} />
        {pair && (
          <a class="button" href={`/v1/jobs/${pair}`} target="_blank" rel="noopener">
            As a file
          </a>
        )}
      </div>
      <div class="columns even">
        {runs.map((one) => (
          <div key={one.job.id} class="panel">
            <p class="row">
              <i class="swatch" style={{ background: one.colour }} />
              <b>
                <bdi>{one.job.name || one.job.id}</bdi>
              </b>
            </p>
            {one.report ? (
              <>
                <SplitMap report={one.report} outputDevice={outputDevice(one.job)} by={by} most={most} />
                <Bars report={one.report} scale={scale} />
              </>
            ) : (
              <p class="muted">No report{one.job.attempt ? "" : ": it has not begun"}.</p>
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

export async function readRun(id: string, n: number): Promise<Run> {
  const job = await get<JobStatus>(`/v1/jobs/${encodeURIComponent(id)}`);
  const report = await get<Report>(`/v1/jobs/${id}/splits`).catch(() => null);
  return { job, report, colour: COLOURS[n % COLOURS.length]! };
}
