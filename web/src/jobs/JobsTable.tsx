// The table of jobs. Only the rows and columns that are in sight are drawn, so that ten thousand jobs and two hundred
// columns scroll as a few do.

import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { ENDED, type ListedJob, may } from "../api";
import { asked, between, clock, count, duration, leader } from "../format";
import { cancel, copy, editJob, remove, resubmit, resume, suspend } from "../job/actions";
import { type Action, Menu } from "../parts/Menu";
import { ProgressBar, StateMark, WhyText } from "../parts/State";
import { Link, withQuery } from "../router";
import { age, type Column, columnsOf, inSight, nextOrder, type Order, shown, type TableRow } from "./columns";
import type { JobsInTable } from "./list";

export type Density = "compact" | "roomy";

/** Heights of rows in pixels; on a phone a row is a card. */
const HEIGHTS = { compact: 30, roomy: 54, card: 92 } as const;
const CHOICE_WIDTH = 34;
const MENU_WIDTH = 40;
const ROWS_BESIDE = 12;
const COLUMNS_BESIDE = 3;
/** So near to its end, the table reads on. */
const NEAR = 600;

interface Props {
  list: JobsInTable;
  rows: readonly TableRow[];
  columns: readonly string[];
  density: Density;
  phone: boolean;
  order: Order | null;
  setOrder: (order: Order | null) => void;
  chosen: ReadonlySet<string>;
  choose: (chosen: ReadonlySet<string>) => void;
  scrolled: (atTop: boolean) => void;
  now: number;
}

export function JobsTable(props: Props) {
  const { rows, chosen } = props;
  const frame = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, left: 0, width: 1200, height: 800 });
  const columns = columnsOf(props.columns);
  const height = HEIGHTS[props.phone ? "card" : props.density];
  const [from, to] = inSight(view.top, view.height, height, rows.length, ROWS_BESIDE);
  const rest = columns.slice(1);
  const [left, right] = props.phone
    ? [0, rest.length]
    : inSight(
        view.left,
        view.width,
        rest.map((column) => column.width),
        rest.length,
        COLUMNS_BESIDE,
      );
  const drawn = [columns[0]!, ...rest.slice(left, right)];
  // Those of a row that has them all. A gap that spans more adds columns, which take their part of the job's width.
  const cells = props.phone ? 3 : drawn.length + 2 + Number(left > 0) + Number(right < rest.length);
  const measure = () => {
    const node = frame.current;
    if (!node) return; // the event came when the table was gone
    const now = { top: node.scrollTop, left: node.scrollLeft, width: node.clientWidth, height: node.clientHeight };
    setView((before) => (same(before, now) ? before : now));
    props.scrolled(node.scrollTop < height);
    if (props.list.more && node.scrollTop + node.clientHeight > node.scrollHeight - NEAR) props.list.readMore();
  };
  useLayoutEffect(() => {
    measure();
    const resized = new ResizeObserver(measure);
    resized.observe(frame.current!);
    return () => resized.disconnect();
  }, [rows.length, props.list.more, props.density, props.phone]);
  const last = useRef(-1);
  const toggle = (at: number, event: MouseEvent) => {
    const next = new Set(chosen);
    const on = !chosen.has(rows[at]!.job.id);
    const [first, end] =
      event.shiftKey && last.current >= 0 ? [Math.min(at, last.current), Math.max(at, last.current)] : [at, at];
    for (const row of rows.slice(first, end + 1)) on ? next.add(row.job.id) : next.delete(row.job.id);
    last.current = at;
    props.choose(next);
  };
  const every = rows.length > 0 && rows.every((row) => chosen.has(row.job.id));
  const widths = rest.map((column) => column.width);
  const sum = (some: number[]) => some.reduce((all, one) => all + one, 0);
  return (
    <div ref={frame} class="jobs-frame" onScroll={measure} tabIndex={0} role="region" aria-label="Jobs, newest first">
      <table
        class={`jobs ${props.density}`}
        aria-rowcount={rows.length + 1}
        aria-colcount={columns.length + 2}
        style={
          props.phone ? {} : { width: `max(100%, ${CHOICE_WIDTH + MENU_WIDTH + columns[0]!.width + sum(widths)}px)` }
        }
      >
        {!props.phone && (
          <colgroup>
            <col style={{ width: `${CHOICE_WIDTH}px` }} />
            <col />
            {left > 0 && <col style={{ width: `${sum(widths.slice(0, left))}px` }} />}
            {rest.slice(left, right).map((column) => (
              <col key={column.name} style={{ width: `${column.width}px` }} />
            ))}
            {right < rest.length && <col style={{ width: `${sum(widths.slice(right))}px` }} />}
            <col style={{ width: `${MENU_WIDTH}px` }} />
          </colgroup>
        )}
        <thead>
          <tr>
            <th scope="col" class="choice-of-row">
              <input
                type="checkbox"
                aria-label="Choose all of these jobs"
                checked={every}
                onChange={() => props.choose(every ? new Set() : new Set(rows.map((row) => row.job.id)))}
              />
            </th>
            {drawn.map((column, n) => (
              <Heading
                key={column.name}
                column={column}
                at={n ? left + n + 1 : 2}
                {...props}
                before={n === 1 && left > 0}
              />
            ))}
            {right < rest.length && <td class="gap" />}
            <th scope="col">
              <span class="unseen">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {from > 0 && <Gap height={from * height} columns={cells} />}
          {rows.slice(from, to).map((row, n) => (
            <tr
              key={row.job.id}
              aria-rowindex={from + n + 2}
              class={chosen.has(row.job.id) ? "chosen" : ""}
              style={{ height: `${height}px` }}
            >
              <td class="choice-of-row">
                <input
                  type="checkbox"
                  aria-label={`Choose ${row.job.name || row.job.id}`}
                  checked={chosen.has(row.job.id)}
                  onClick={(event) => toggle(from + n, event)}
                />
              </td>
              {props.phone ? (
                <Card row={row} columns={rest} now={props.now} />
              ) : (
                drawn.map((column, at) => [
                  at === 1 && left > 0 && <td key="before" class="gap" />,
                  <Cell key={column.name} column={column} row={row} now={props.now} density={props.density} />,
                ])
              )}
              {!props.phone && right < rest.length && <td class="gap" />}
              <td class="does">
                <RowMenu job={row.job} gone={() => props.list.drop(new Set([row.job.id]))} />
              </td>
            </tr>
          ))}
          {to < rows.length && <Gap height={(rows.length - to) * height} columns={cells} />}
        </tbody>
      </table>
    </div>
  );
}

const same = (a: Record<string, number>, b: Record<string, number>) =>
  Object.keys(a).every((name) => a[name] === b[name]);

function Gap(props: { height: number; columns: number }) {
  return (
    <tr aria-hidden="true" class="gap">
      <td colSpan={props.columns} style={{ height: `${props.height}px` }} />
    </tr>
  );
}

function Heading(props: {
  column: Column;
  at: number;
  before: boolean;
  order: Order | null;
  setOrder: (order: Order | null) => void;
}) {
  const { column, order } = props;
  const sorts = order?.column === column.name;
  return (
    <>
      {props.before && <td class="gap" />}
      <th
        scope="col"
        class={`${column.numeric ? "n" : ""} ${column.name === "name" ? "of-job" : ""}`}
        aria-colindex={props.at}
        aria-sort={sorts ? (order.down ? "descending" : "ascending") : "none"}
      >
        <button
          class="plain sorts"
          title={`Sort by ${column.name}`}
          onClick={() => props.setOrder(nextOrder(order, column.name, column.numeric))}
        >
          <span class="ellipsis">{column.title}</span>
          <i aria-hidden="true">{sorts ? (order.down ? "▼" : "▲") : ""}</i>
        </button>
      </th>
    </>
  );
}

interface CellProps {
  column: Column;
  row: TableRow;
  now: number;
  density: Density;
}

function Cell(props: CellProps) {
  const { column, row } = props;
  const { job } = row;
  const roomy = props.density === "roomy";
  switch (column.name) {
    case "name":
      return (
        <th scope="row" class="of-job">
          <Link to={`/jobs/${job.id}`} class="name">
            <bdi>{job.name || job.id}</bdi>
          </Link>
          {roomy && <Labels labels={job.labels} />}
        </th>
      );
    case "state":
      return (
        <td class="of-state">
          <StateMark state={job.state} cancelling={job.cancel_requested && !ENDED.has(job.state)} />
          {roomy ? (
            <div class="why">
              <WhyText job={job} />
            </div>
          ) : (
            <span class="why ellipsis">
              <WhyText job={job} />
            </span>
          )}
        </td>
      );
    case "progress":
      return (
        <td class="progress">
          {!ENDED.has(job.state) && job.state !== "queued" && <ProgressBar progress={job.progress} running />}
          {job.queue_position != null && <span>place {count(job.queue_position)} in the queue</span>}
        </td>
      );
    case "devices":
      return (
        <td>
          {job.strategy} on {asked(job)}
          {roomy && <div class="muted small ellipsis">{leader(job.placement) ?? job.pool}</div>}
        </td>
      );
    case "pool":
      return <Plain text={job.pool} />;
    case "node":
      return <Plain text={leader(job.placement) ?? ""} />;
    case "created":
      return <td title={clock(job.created_at)}>{age(job.created_at, props.now)}</td>;
    case "took":
      return <td class="n">{duration(between(job.started_at, job.finished_at, props.now))}</td>;
    case "priority":
    case "attempt":
      return <td class="n">{job[column.name]}</td>;
    default: {
      const value = row.values[column.name];
      const text = shown(liveValue(job, column.name) ?? value);
      return (
        <td class={typeof value === "number" || value == null ? "n ellipsis" : "ellipsis"} title={text}>
          <bdi>{text}</bdi>
        </td>
      );
    }
  }
}

/** A job on a narrow page: what it is, how it stands, and a line of what else is asked for. */
function Card(props: { row: TableRow; columns: readonly Column[]; now: number }) {
  const { row } = props;
  const { job } = row;
  const took = job.started_at ? duration(between(job.started_at, job.finished_at, props.now)) : "";
  const values = props.columns
    .filter((column) => column.name in row.values && column.name !== "owner")
    .map((column) => [column.title, shown(liveValue(job, column.name) ?? row.values[column.name])] as const)
    .filter(([, text]) => text)
    .map(([title, text]) => `${title} ${text}`);
  return (
    <th scope="row" class="card">
      <Link to={`/jobs/${job.id}`} class="name">
        <bdi>{job.name || job.id}</bdi>
      </Link>
      <div class="ellipsis">
        <StateMark state={job.state} cancelling={job.cancel_requested && !ENDED.has(job.state)} />{" "}
        <span class="small">
          <WhyText job={job} />
        </span>
      </div>
      {!ENDED.has(job.state) && job.state !== "queued" && <ProgressBar progress={job.progress} running />}
      <div class="muted small ellipsis">
        {[`${job.strategy} on ${asked(job)}`, age(job.created_at, props.now), took, ...values]
          .filter(Boolean)
          .join(" · ")}
      </div>
    </th>
  );
}

/** What progress tells of a running job is newer than the values of its columns. */
function liveValue(job: ListedJob, column: string): number | null {
  if (ENDED.has(job.state)) return null;
  if (column === "loss") return job.progress?.loss ?? null;
  return column === "rows_per_second" ? (job.progress?.rows_per_second ?? null) : null;
}

function Plain(props: { text: string }) {
  return (
    <td class="ellipsis" title={props.text}>
      <bdi>{props.text}</bdi>
    </td>
  );
}

const LABELS = 4;

function Labels(props: { labels: Record<string, string> }) {
  const labels = Object.entries(props.labels);
  if (!labels.length) return null;
  return (
    <div class="labels">
      {labels.slice(0, LABELS).map(([name, value]) => (
        <Link key={name} to={withQuery({ label: `${name}=${value}` })} class="label">
          <bdi>
            {name}={value}
          </bdi>
        </Link>
      ))}
    </div>
  );
}

function RowMenu(props: { job: ListedJob; gone: () => void }) {
  const { job } = props;
  return (
    <Menu label={`Actions on ${job.name || job.id}`} actions={actionsOf(job, props.gone)}>
      ⋯
    </Menu>
  );
}

function actionsOf(job: ListedJob, gone: () => void): Action[] {
  const looks: Action[] = [
    { title: "Compare with …", href: `/compare?jobs=${job.id}` },
    { title: "Copy the id", act: () => void copy(job.id, "The id") },
  ];
  if (!may("submit")) return looks;
  const ended = ENDED.has(job.state);
  const changes: Action[] = ended
    ? [{ title: "Delete …", risky: true, act: () => remove(job, gone) }]
    : [
        job.reason.code === "suspended"
          ? { title: "Resume", act: () => void resume(job.id) }
          : { title: "Suspend", act: () => void suspend(job.id) },
        { title: "Cancel", risky: true, disabled: job.cancel_requested, act: () => void cancel(job.id) },
      ];
  return [
    { title: "Submit again", act: () => void resubmit(job.id) },
    { title: "Edit and submit", act: () => void editJob(job.id) },
    ...looks,
    ...changes,
  ];
}
