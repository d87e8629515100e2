// What became of each run, and in what their specs differ.

import { useState } from "preact/hooks";

import type { JobStatus, Report } from "../api";
import { asked, between, clock, duration, number } from "../format";
import { StateMark } from "../parts/State";
import { Link } from "../router";
import type { Json } from "../submit/changes";
import { differences } from "./runs";

export interface Run {
  job: JobStatus;
  report: Report | null;
  /** Of its lines. */
  colour: string;
}

const METRICS = 12;
/** Fields that are there at first. */
const FIELDS = 10;

export function Outcomes(props: { runs: readonly Run[]; remove: (id: string) => void }) {
  const { runs } = props;
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.job.result?.metrics ?? {})))].slice(0, METRICS);
  const rate = (run: Run) => run.report?.rows_per_second ?? run.job.progress?.rows_per_second ?? null;
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Outcomes">
      <table class="outcomes">
        <thead>
          <tr>
            <th scope="col">Run</th>
            <th scope="col">State</th>
            <th scope="col">Devices</th>
            <th scope="col" class="n">
              Took
            </th>
            <th scope="col" class="n">
              Rows/s
            </th>
            <th scope="col" class="n">
              Loss
            </th>
            {names.map((name) => (
              <th key={name} scope="col" class="n">
                {name}
              </th>
            ))}
            <th scope="col">
              <span class="unseen">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {runs.map((run) => (
            <tr key={run.job.id}>
              <th scope="row">
                <i class="swatch" style={{ background: run.colour }} />{" "}
                <Link to={`/jobs/${run.job.id}`} class="name">
                  <bdi>{run.job.name || run.job.id}</bdi>
                </Link>{" "}
                <span class="muted">
                  {run.job.id.slice(-8)}, {clock(run.job.created_at)}
                </span>
              </th>
              <td>
                <StateMark state={run.job.state} />
              </td>
              <td>
                {run.job.strategy} on {asked(run.job)}
              </td>
              <td class="n">{duration(between(run.job.started_at, run.job.finished_at, Date.now()))}</td>
              <td class="n">{number(rate(run))}</td>
              <td class="n">{number(run.job.result?.loss ?? run.job.progress?.loss)}</td>
              {names.map((name) => (
                <td key={name} class="n">
                  {number(run.job.result?.metrics?.[name])}
                </td>
              ))}
              <td class="does">
                <button
                  class="plain"
                  aria-label={`Take ${run.job.name || run.job.id} out`}
                  onClick={() => props.remove(run.job.id)}
                >
                  ✕
                </button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function SpecDiff(props: { runs: readonly Run[] }) {
  const { runs } = props;
  const [all, setAll] = useState(false);
  const found = differences(runs.map((run) => run.job.spec as Json));
  const shown = all ? found : found.slice(0, FIELDS);
  if (!found.length) return <p class="muted">Their specs are the same.</p>;
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Differences of the specs">
      <table class="spec-diff">
        <thead>
          <tr>
            <th scope="col">Field</th>
            {runs.map((run) => (
              <th key={run.job.id} scope="col">
                <i class="swatch" style={{ background: run.colour }} />{" "}
                <bdi>{run.job.name || run.job.id.slice(-8)}</bdi>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {shown.map(([path, values]) => (
            <tr key={path}>
              <th scope="row" class="mono">
                {path}
              </th>
              {values.map((value, n) => (
                <td key={runs[n]!.job.id} class="mono">
                  {value === undefined ? (
                    <span class="muted">not set</span>
                  ) : (
                    <bdi>{typeof value === "string" ? value : JSON.stringify(value)}</bdi>
                  )}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {found.length > shown.length && (
        <button class="plain" onClick={() => setAll(true)}>
          All {found.length} fields
        </button>
      )}
    </div>
  );
}
