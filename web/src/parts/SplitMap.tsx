// The split, drawn: devices across, ways of dividing a batch down. An idle device is hatched and says "idle".

import { useState } from "preact/hooks";

import type { DeviceMeasures, Pattern, Report } from "../api";
import { NONE, bytes, count, ms, number, percent, plural, shape } from "../format";
import { IDLE, LEVELS, OUTPUT, SLOW, idleSteps, inOrder, level, slowDevice, typicalMs } from "../marks";

type By = "rows" | "time" | "wait" | "memory";

const SWITCH: [By, string][] = [
  ["rows", "Rows"],
  ["time", "Time"],
  ["wait", "Waiting"],
  ["memory", "Memory"],
];
/** Patterns that are shown at first: those with most steps. */
const SHOWN = 12;
const DENSE_FROM = 17;
/** From so many devices on, numbers are only in the tooltips. */
const WORDLESS_FROM = 49;

const VALUES: Record<Exclude<By, "rows">, (one: DeviceMeasures) => number | null> = {
  time: typicalMs,
  wait: (one) => one.data_wait_ms?.p50 ?? null,
  memory: (one) => one.memory_peak_bytes,
};
const SHOW: Record<Exclude<By, "rows">, (value: number) => string> = { time: ms, wait: ms, memory: bytes };
const NOTES: Record<Exclude<By, "rows">, string[]> = {
  time: ["per_device.forward_ms", "per_device.backward_ms"],
  wait: ["per_device.data_wait_ms"],
  memory: ["per_device.memory_peak_bytes"],
};

export function SplitMap(props: { report: Report; outputDevice: number | null }) {
  const { report } = props;
  const [by, setBy] = useState<By>("rows");
  const [all, setAll] = useState(false);
  const devices = report.devices;
  const dense = devices.length >= DENSE_FROM;
  const slow = slowDevice(report);
  const idle = idleSteps(report);
  const rows = inOrder(report.patterns);
  const shown = all ? rows : shortened(rows);
  return (
    <div>
      <div class="row">
        <h2 class="grow" id="split">
          What each device got <small>{report.final ? "" : "so far"}{report.rehearsal ? " · rehearsal: splits of GPUs, times of the CPU" : ""}</small>
        </h2>
        <div class="switch" role="group" aria-label="What the cells show">
          {SWITCH.map(([name, title]) => (
            <button key={name} aria-pressed={by === name} onClick={() => setBy(name)}>{title}</button>
          ))}
        </div>
      </div>
      <div class="scroll">
        <table class={dense ? "map dense" : "map"} aria-labelledby="split">
          <thead>
            <tr>
              <th class="head" scope="col">{by === "rows" ? "batch" : "typical step"}</th>
              {devices.map((device) => (
                <th key={device.device} scope="col" title={`${device.id} on ${device.node}: ${device.name}, rank ${device.rank}`}>
                  <span class="dev">{dense ? device.device : device.id.length <= 8 ? device.id : `gpu ${device.device}`}</span>
                  {slow === device.device && <span class="mark slow">{SLOW}</span>}
                  {props.outputDevice === device.device && <span class="mark output">{dense ? "out" : OUTPUT}</span>}
                  {idle.has(device.device) && <span class="mark idles" title={`idle in ${plural(idle.get(device.device)!, "step")}`}>{IDLE}</span>}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {by === "rows"
              ? shown.map((pattern) => <PatternRow key={keyOf(pattern)} pattern={pattern} report={report} slow={slow} />)
              : <MeasureRow by={by} report={report} slow={slow} />}
          </tbody>
        </table>
      </div>
      {by === "rows" && rows.length > shown.length && (
        <button class="plain" onClick={() => setAll(true)}>
          Show all {count(rows.length)} ways of dividing a batch; these are the {shown.length} most frequent
        </button>
      )}
      <Legend by={by} report={report} anyIdle={idle.size > 0 || report.patterns.some((one) => one.rows?.includes(0))} />
    </div>
  );
}

function PatternRow(props: { pattern: Pattern; report: Report; slow: number | null }) {
  const { pattern, report } = props;
  const known = (pattern.rows ?? []).filter((rows): rows is number => rows != null);
  const most = Math.max(...known, 0);
  const wordless = report.devices.length >= WORDLESS_FROM;
  const steps = pattern.steps == null ? NONE : plural(pattern.steps, pattern.phase === "train" ? "step" : "batch");
  return (
    <tr>
      <th class="head" scope="row" title={rangeOf(pattern)}>
        {pattern.phase} {pattern.batch_rows == null ? "" : `of ${count(pattern.batch_rows)}`}
        {pattern.module && <span class="muted" dir="auto"> {pattern.module}</span>}
        <span class="muted"> · {steps.replace("batchs", "batches")}</span>
      </th>
      {report.devices.map(({ device }) => {
        const rows = pattern.rows?.[device];
        const title = [
          `device ${device}: ${rows == null ? "rows not known" : rows === 0 ? "idle" : plural(rows, "row")}`,
          `in ${shape(pattern.input_shapes?.[device])}`,
          `out ${shape(pattern.output_shapes?.[device])}`,
          timesOf(report.per_device[device]),
        ].join("\n");
        if (rows == null) return <td key={device} class="cell none" title={title}>{NONE}</td>;
        if (rows === 0) {
          return <td key={device} class="cell idle" title={title} aria-label={`device ${device} idle`}><span>{wordless ? "" : IDLE}</span></td>;
        }
        const kind = `cell l${level(rows, most)}${props.slow === device ? " is-slow" : ""}`;
        return <td key={device} class={kind} title={title}>{wordless ? "" : count(rows)}</td>;
      })}
    </tr>
  );
}

function MeasureRow(props: { by: Exclude<By, "rows">; report: Report; slow: number | null }) {
  const { by, report } = props;
  const values = report.devices.map(({ device }) => {
    const one = report.per_device.find((found) => found.device === device);
    return one ? VALUES[by](one) : null;
  });
  if (values.every((value) => value == null)) {
    const why = NOTES[by].map((field) => report.notes[field]).find((note) => note);
    return <tr><td colSpan={report.devices.length + 1} class="muted">Not measured{why ? `: ${why}` : "."}</td></tr>;
  }
  const most = Math.max(...values.map((value) => value ?? 0));
  return (
    <tr>
      <th class="head" scope="row">{by === "memory" ? "peak" : "median"}</th>
      {values.map((value, device) =>
        value == null
          ? <td key={device} class="cell none" title="not measured">{NONE}</td>
          : <td key={device} class={`cell l${level(value, most)}${props.slow === device ? " is-slow" : ""}`} title={timesOf(report.per_device[device])}>{SHOW[by](value)}</td>,
      )}
    </tr>
  );
}

function Legend(props: { by: By; report: Report; anyIdle: boolean }) {
  const what = { rows: "rows of one batch", time: "data wait + forward + backward", wait: "waiting for data", memory: "peak memory" }[props.by];
  const { balance } = props.report;
  return (
    <div class="legend">
      <span class="row">less <span class="scale" aria-hidden="true">{Array.from({ length: LEVELS }, (_, n) => <i key={n} class={`l${n}`} />)}</span> more {what}</span>
      {props.anyIdle && <span><i class="idle" aria-hidden="true" /> idle: it got nothing of that batch</span>}
      {balance.idle_device_steps ? <span>{plural(balance.idle_device_steps, "idle device-step")}</span> : null}
      {balance.wasted_device_seconds ? <span title={props.report.notes["balance.wasted_device_seconds"]}>{number(balance.wasted_device_seconds)} device-seconds waited for the slowest</span> : null}
    </div>
  );
}

function shortened(patterns: Pattern[]): Pattern[] {
  if (patterns.length <= SHOWN) return patterns;
  const most = new Set([...patterns].sort((a, b) => (b.steps ?? 0) - (a.steps ?? 0)).slice(0, SHOWN));
  return patterns.filter((pattern) => most.has(pattern));
}

function timesOf(one: DeviceMeasures | undefined): string {
  if (!one) return "";
  return `share ${percent(one.share)} · forward ${ms(one.forward_ms?.p50)} · backward ${ms(one.backward_ms?.p50)} · wait ${ms(one.data_wait_ms?.p50)}`;
}

const keyOf = (pattern: Pattern) => `${pattern.phase} ${pattern.module} ${pattern.batch_rows} ${pattern.rows?.join()}`;

const rangeOf = (pattern: Pattern) =>
  pattern.first_step == null ? "" : `steps ${count(pattern.first_step)} to ${count(pattern.last_step)}${pattern.shapes_vary ? "; shapes vary" : ""}`;
