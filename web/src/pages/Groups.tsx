// Comparisons and sweeps: a list of them, and one with its jobs and their curves over each other.

import { useEffect, useState } from "preact/hooks";

import { type ComparisonReport, type GroupSummary, get, may, post, type SweepReport } from "../api";
import type { Run } from "../compare/Outcomes";
import { Overlay } from "../compare/Overlay";
import { MOST_COMPARED } from "../compare/runs";
import { bytes, clock, number, percent, plural } from "../format";
import { useLooking } from "../looking";
import { StateMark } from "../parts/State";
import { Link, place } from "../router";
import { attempt } from "../toast";
import { readRun } from "./Compare";

type Kind = "comparison" | "sweep";
interface Listed {
  kind: Kind;
  group: GroupSummary;
}

const ALIVE = ["queued", "starting", "running"];

export function GroupsPage() {
  const query = place.value.searchParams;
  const kind: Kind = query.has("sweep") ? "sweep" : "comparison";
  const id = query.get(kind);
  return id ? <GroupPage key={id} kind={kind} id={id} /> : <GroupList />;
}

async function readList(): Promise<Listed[]> {
  const [{ comparisons }, { sweeps }] = await Promise.all([
    get<{ comparisons: GroupSummary[] }>("/v1/comparisons"),
    get<{ sweeps: GroupSummary[] }>("/v1/sweeps"),
  ]);
  const all = [
    ...comparisons.map((group): Listed => ({ kind: "comparison", group })),
    ...sweeps.map((group): Listed => ({ kind: "sweep", group })),
  ];
  return all.sort((a, b) => b.group.id.localeCompare(a.group.id));
}

function GroupList() {
  const [found, problem] = useLooking(readList);
  useEffect(() => {
    document.title = "Groups: Shardyard";
  }, []);
  return (
    <>
      <div class="row head">
        <h1>Groups</h1>
        <span class="muted">comparisons and sweeps, the newest fifty of each</span>
      </div>
      <Wrong problem={problem} />
      {found?.length === 0 && (
        <p class="muted">
          None yet: <code>shardyard compare job.json --strategies dp,ddp --devices 1,2</code> starts one.
        </p>
      )}
      {found && found.length > 0 && (
        <section class="panel scroll" tabIndex={0} aria-label="Groups">
          <table>
            <thead>
              <tr>
                {["Name", "Kind", "State", "Jobs", "Created"].map((title) => (
                  <th key={title} scope="col">
                    {title}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {found.map(({ kind, group }) => (
                <tr key={group.id}>
                  <th scope="row">
                    <Link to={`/groups?${kind}=${group.id}`} class="name">
                      <bdi>{group.name || group.id}</bdi>
                    </Link>
                  </th>
                  <td>{kind}</td>
                  <td>
                    <StateMark state={group.state} />
                  </td>
                  <td>{progressOf(group)}</td>
                  <td>{clock(group.created_at)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
    </>
  );
}

function progressOf(group: GroupSummary): string {
  const alive = ALIVE.reduce((sum, state) => sum + (group.counts[state] ?? 0), 0);
  return `${group.jobs - alive} of ${plural(group.jobs, "job")} ended`;
}

function Wrong(props: { problem: string }) {
  return props.problem ? (
    <div class="notice bad" role="alert">
      {props.problem}
    </div>
  ) : null;
}

/** A job of a group, as a line of its table. */
interface Row {
  number: number;
  name: string;
  job: string;
  state: string;
  why: string;
  cells: string[];
}

interface Shown {
  title: string;
  state: string;
  said: string[];
  columns: string[];
  rows: Row[];
  notes: string[];
}

function GroupPage(props: { kind: Kind; id: string }) {
  const { kind, id } = props;
  const path = `/v1/${kind}s/${encodeURIComponent(id)}`;
  const [found, problem, look] = useLooking(() =>
    kind === "sweep"
      ? get<SweepReport>(`${path}/report`).then(ofSweep)
      : get<ComparisonReport>(`${path}/report`).then(ofComparison),
  );
  useEffect(() => {
    document.title = `${found?.title ?? "Group"}: Shardyard`;
  }, [found?.title]);
  const cancel = () =>
    attempt(async () => {
      await post(`${path}/cancel`);
      await look(true);
    });
  return (
    <>
      <div class="row head">
        <h1 class="grow">
          <bdi>{found?.title ?? "Group"}</bdi>
        </h1>
        {found && <StateMark state={found.state} />}
        <a class="button" href={`${path}/report`} target="_blank" rel="noopener">
          As a file
        </a>
        {found && may("submit") && ALIVE.includes(found.state) && <button onClick={cancel}>Cancel</button>}
      </div>
      <Wrong problem={problem} />
      {found && (
        <>
          {found.said.map((words) => (
            <p key={words} dir="auto">
              {words}
            </p>
          ))}
          <Jobs shown={found} />
          {found.notes.map((words) => (
            <p key={words} class="muted" dir="auto">
              {words}
            </p>
          ))}
          <Curves rows={found.rows} />
        </>
      )}
    </>
  );
}

function Jobs(props: { shown: Shown }) {
  const { columns, rows } = props.shown;
  return (
    <section class="panel scroll" tabIndex={0} aria-label="Jobs of the group">
      <table>
        <thead>
          <tr>
            <th scope="col">Job</th>
            <th scope="col">State</th>
            {columns.map((title) => (
              <th key={title} scope="col" class="n">
                {title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.number}>
              <th scope="row">
                <Link to={`/jobs/${row.job}`} class="name">
                  <bdi>{row.name}</bdi>
                </Link>
              </th>
              <td title={row.why}>
                <StateMark state={row.state} />
              </td>
              {row.cells.map((cell, n) => (
                <td key={columns[n]} class="n">
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

/** Of the first jobs of the table that have begun: as many as can be told apart. */
function Curves(props: { rows: readonly Row[] }) {
  const [runs, setRuns] = useState<readonly Run[]>([]);
  const begun = props.rows.filter((row) => row.state !== "queued" && row.state !== "deleted").slice(0, MOST_COMPARED);
  const key = begun.map((row) => row.job).join();
  const states = begun.map((row) => row.state).join(); // a job that has ended has more points than while it ran
  useEffect(() => {
    let over = false;
    if (key)
      void Promise.all(key.split(",").map(readRun)).then(
        (found) => !over && setRuns(found),
        () => {},
      );
    return () => {
      over = true;
    };
  }, [key, states]);
  if (!runs.length) return null;
  return (
    <section class="panel below">
      <div class="row head">
        <h2 class="grow">Curves</h2>
        <Link to={`/compare?jobs=${key}`} class="button">
          Compare these runs
        </Link>
      </div>
      <p class="row">
        {runs.map((run) => (
          <span key={run.job.id}>
            <i class="swatch" style={{ background: run.colour }} /> <bdi>{run.job.name}</bdi>
          </span>
        ))}
      </p>
      <Overlay runs={runs} />
    </section>
  );
}

const shown = (value: number | null, how: (value: number) => string): string => (value == null ? "" : how(value));
const rounded = (value: number) => number(Math.round(value));

function ofComparison(report: ComparisonReport): Shown {
  const { recommendation } = report;
  return {
    title: `Comparison ${report.name}`,
    state: report.state,
    said: [recommendation.reason, recommendation.price].filter(Boolean),
    columns: ["Rows/s", "±", "Efficiency", "Communication", "Memory", "Loss"],
    rows: report.variants.map((one) => ({
      number: one.number,
      name: `${one.strategy} on ${one.devices}`,
      job: one.job,
      state: one.state,
      why: one.message,
      cells: [
        shown(one.rows_per_second, rounded),
        shown(one.rows_per_second_error, rounded),
        shown(one.efficiency, percent),
        shown(one.communication_share, percent),
        shown(one.memory_peak_bytes, bytes),
        shown(one.loss, number),
      ],
    })),
    notes: [
      ...report.left_out.map((one) => `Left out: ${one.strategy} on ${one.devices}: ${one.why}`),
      ...report.notes,
    ],
  };
}

function ofSweep(report: SweepReport): Shown {
  const sign = report.mode === "min" ? 1 : -1;
  const rank = (value: number | null) => (value == null ? Number.POSITIVE_INFINITY : sign * value);
  const trials = [...report.trials].sort((a, b) => rank(a.value) - rank(b.value) || a.number - b.number);
  const best = report.trials.find((one) => one.number === report.best);
  return {
    title: `Sweep ${report.name}`,
    state: report.state,
    said: best ? [`Best is trial ${best.number}: ${report.metric} ${shown(best.value, number)}`] : [],
    columns: [report.metric, ...report.paths.map((path) => path.replace(/^program\./, "")), "Rows/s"],
    rows: trials.map((one) => ({
      number: one.number,
      name: `trial ${one.number}`,
      job: one.job,
      state: one.state,
      why: one.message,
      cells: [
        shown(one.value, number),
        ...report.paths.map((path) => worded(one.values[path])),
        shown(one.rows_per_second, rounded),
      ],
    })),
    notes: report.notes,
  };
}

const worded = (value: unknown): string =>
  value === undefined ? "" : typeof value === "number" ? number(value) : String(value);
