import { useEffect, useState } from "preact/hooks";

import { type JobStatus, type JobSummary, Problem, type Report, get } from "../api";
import { Bars } from "../parts/Bars";
import { SplitMap } from "../parts/SplitMap";
import { StateMark } from "../parts/State";
import { Link, go, place, withQuery } from "../router";

interface Side {
  job: JobStatus;
  report: Report | null;
}

export function ComparePage() {
  const ids = ["a", "b"].map((name) => place.value.searchParams.get(name) ?? "");
  const [recent, setRecent] = useState<JobSummary[]>([]);
  const [sides, setSides] = useState<(Side | null)[]>([null, null]);
  const [words, setWords] = useState("");
  const [problem, setProblem] = useState("");
  useEffect(() => {
    void get<{ jobs: JobSummary[] }>("/v1/jobs?limit=100").then((found) => setRecent(found.jobs), () => {});
  }, []);
  useEffect(() => {
    setProblem("");
    void Promise.all(ids.map((id) => (id ? side(id) : null))).then(setSides, (error: Problem) => setProblem(error.message));
    setWords("");
    if (ids.every(Boolean)) void differences(ids[0]!, ids[1]!).then(setWords);
  }, [ids.join()]);
  return (
    <>
      <div class="row head"><h1>Compare two runs</h1></div>
      {problem && <div class="notice bad" role="alert">{problem}</div>}
      <div class="columns even">
        {["a", "b"].map((name, n) => {
          const found = sides[n];
          return (
            <div key={name} class="panel">
              <label>{n ? "with" : "this run"}
                <select value={ids[n]} onChange={(event) => go(withQuery({ [name]: event.currentTarget.value }), "replace")}>
                  <option value="">choose a job</option>
                  {ids[n] && !recent.some((job) => job.id === ids[n]) && <option value={ids[n]}>{found?.job.name ?? ids[n]}</option>}
                  {recent.map((job) => <option key={job.id} value={job.id}>{job.name} ({job.strategy} on {job.devices}, {job.state})</option>)}
                </select>
              </label>
              {found && <p class="row"><Link to={`/jobs/${found.job.id}`} class="name"><bdi>{found.job.name}</bdi></Link><StateMark state={found.job.state} /></p>}
              {found?.report ? <><SplitMap report={found.report} outputDevice={null} /><div class="gap" /><Bars report={found.report} /></> : found && <p class="muted">No report yet.</p>}
            </div>
          );
        })}
      </div>
      {words && <section class="panel below"><h2>In numbers</h2><pre class="scroll">{words}</pre></section>}
    </>
  );
}

async function side(id: string): Promise<Side> {
  const job = await get<JobStatus>(`/v1/jobs/${id}`);
  const report = await get<Report>(`/v1/jobs/${id}/splits`).catch(() => null);
  return { job, report };
}

async function differences(a: string, b: string): Promise<string> {
  const answer = await fetch(`/v1/jobs/${a}/splits/diff?against=${b}`, { headers: { Accept: "text/plain" } });
  return answer.ok ? answer.text() : "";
}
