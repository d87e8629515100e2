// The split, drawn: devices across, ways of dividing a batch down. An idle device is hatched and says "idle".
// Many devices stand in rows of sixteen, so that each of them can still be read.

import { useState } from "preact/hooks";

import type { Pattern, Report } from "../api";
import { count, NONE, number, plural } from "../format";
import { IDLE, idleSteps, inOrder, LEVELS, level, meanOf, OUTPUT, SLOW, slowDevice, unevenClass } from "../marks";
import { aboutDevice, aboutShard, type By, measured, SHOW, titleOf, whyNot } from "./measures";

const SWITCH: [By, string][] = [
  ["rows", "Rows"],
  ["time", "Time"],
  ["wait", "Waiting"],
  ["memory", "Memory"],
];
const ACROSS = 16;
/** Rows of cells that are shown at first: of the patterns with most steps. */
const SHOWN = 12;
/** Rows of cells that come with each wish for more. */
const MORE = 128;
const HINT = "Point at a cell for its shapes and times.";

interface Cell {
  device: number;
  value: number | null;
  text: string;
  about: string;
}

interface Line {
  key: string;
  title: string;
  note: string;
  /** The largest value of several maps that are compared; null: cells are coloured around even. */
  most: number | null;
  cells: Cell[];
}

interface Props {
  report: Report;
  outputDevice: number | null;
  /** What the cells show, where something else than the map's own switch decides it; and the largest value of all maps
   * that are compared. */
  by?: By;
  most?: number | null;
}

export function SplitMap(props: Props) {
  const { report } = props;
  const [own, setBy] = useState<By>("rows");
  const [more, setMore] = useState(0);
  const [about, setAbout] = useState("");
  const by = props.by ?? own;
  const banks = Math.ceil(report.devices.length / ACROSS);
  const patterns = inOrder(report.patterns);
  const shown = mostFrequent(patterns, Math.max(2, Math.floor((SHOWN + more * MORE) / banks)));
  const lines =
    by === "rows" ? shown.map((pattern) => patternLine(pattern, report)) : measureLine(by, report, props.most ?? null);
  const look = (event: Event) => {
    const words = (event.target as HTMLElement).closest<HTMLElement>("[data-about]")?.dataset["about"];
    if (words) setAbout(words);
  };
  return (
    <div>
      <div class="row">
        <h2 class="grow">
          What each device got{" "}
          <small>
            {report.final ? "" : "so far"}
            {report.rehearsal ? " · rehearsal: splits of GPUs, times of the CPU" : ""}
          </small>
        </h2>
        {!props.by && <BySwitch by={by} setBy={setBy} />}
      </div>
      <div class="scroll" tabIndex={0} role="group" aria-label="The split" onMouseOver={look} onClick={look}>
        {lines === null ? (
          <p class="muted">Not measured{whyNot(by, report)}</p>
        ) : lines.length === 0 ? (
          <p class="muted">No batch has been seen{whyNot(by, report)}</p>
        ) : banks > 1 ? (
          <Banks lines={lines} report={report} />
        ) : (
          <Table lines={lines} {...props} by={by} />
        )}
      </div>
      {banks > 1 && <MarkedInWords report={report} outputDevice={props.outputDevice} />}
      {lines && lines.length > 0 && (
        <p class="about" dir="auto">
          {about || HINT}
        </p>
      )}
      {by === "rows" && patterns.length > shown.length && (
        <button class="plain" onClick={() => setMore(more + 1)}>
          Show more of the {count(patterns.length)} ways of dividing a batch; these are the {shown.length} most frequent
        </button>
      )}
      {lines && lines.length > 0 && <Legend by={by} report={report} around={props.most == null} />}
    </div>
  );
}

export function BySwitch(props: { by: By; setBy: (by: By) => void }) {
  return (
    <div class="switch" role="group" aria-label="What the cells show">
      {SWITCH.map(([name, title]) => (
        <button key={name} aria-pressed={props.by === name} onClick={() => props.setBy(name)}>
          {title}
        </button>
      ))}
    </div>
  );
}

function Table(props: Props & { lines: Line[]; by: By }) {
  const { report, lines } = props;
  const slow = slowDevice(report);
  const idle = idleSteps(report);
  return (
    <table class={report.devices.length > 8 ? "map dense" : "map"}>
      <thead>
        <tr>
          <th class="head" scope="col">
            {props.by === "rows" ? "batch" : "typical step"}
          </th>
          {report.devices.map((device) => (
            <th
              key={device.device}
              scope="col"
              title={`${device.id} on ${device.node}: ${device.name}, rank ${device.rank}`}
            >
              <span class="dev">{device.id.length <= 8 ? device.id : `gpu ${device.device}`}</span>
              {slow === device.device && <span class="mark slow">{SLOW}</span>}
              {props.outputDevice === device.device && <span class="mark output">{OUTPUT}</span>}
              {idle.has(device.device) && (
                <span class="mark idles" title={`idle in ${plural(idle.get(device.device)!, "step")}`}>
                  {IDLE}
                </span>
              )}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {lines.map((line) => (
          <tr key={line.key}>
            <th class="head" scope="row">
              {line.title}
              <span class="muted" dir="auto">
                {" "}
                · {line.note}
              </span>
            </th>
            {line.cells.map((cell) => (
              <CellOf
                key={cell.device}
                cell={cell}
                most={line.most}
                mean={meanOf(line.cells.map((one) => one.value))}
                slow={slow === cell.device}
                numbered={false}
              />
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Banks(props: { lines: Line[]; report: Report }) {
  const slow = slowDevice(props.report);
  const banks = Array.from({ length: Math.ceil(props.report.devices.length / ACROSS) }, (_, n) => n * ACROSS);
  return (
    <table class="map banks">
      {props.lines.map((line) => (
        <tbody key={line.key}>
          <tr>
            <th colSpan={ACROSS} scope="colgroup">
              {line.title}
              <span class="muted" dir="auto">
                {" "}
                · {line.note}
              </span>
            </th>
          </tr>
          {banks.map((from) => (
            <tr key={from}>
              {line.cells.slice(from, from + ACROSS).map((cell) => (
                <CellOf
                  key={cell.device}
                  cell={cell}
                  most={line.most}
                  mean={meanOf(line.cells.map((one) => one.value))}
                  slow={slow === cell.device}
                  numbered
                />
              ))}
            </tr>
          ))}
        </tbody>
      ))}
    </table>
  );
}

function CellOf(props: { cell: Cell; most: number | null; mean: number; slow: boolean; numbered: boolean }) {
  const { cell } = props;
  const kind = cell.value == null ? "none" : cell.text === IDLE ? "idle" : colourOf(cell.value, props.most, props.mean);
  return (
    <td class={`cell ${kind}${props.slow && kind !== "idle" ? " is-slow" : ""}`} data-about={cell.about}>
      {props.numbered && (
        <i>
          {cell.device}
          {props.slow ? ` ${SLOW}` : ""}
        </i>
      )}
      <span>{cell.text}</span>
    </td>
  );
}

const colourOf = (value: number, most: number | null, mean: number): string =>
  most == null ? unevenClass(value, mean) : `l${level(value, most)}`;

function MarkedInWords(props: { report: Report; outputDevice: number | null }) {
  const slow = slowDevice(props.report);
  const idle = [...idleSteps(props.report).keys()];
  return (
    <p class="row marked-in-words">
      {slow != null && (
        <span>
          <span class="mark slow">{SLOW}</span> device {slow}
        </span>
      )}
      {props.outputDevice != null && (
        <span>
          <span class="mark output">{OUTPUT}</span> device {props.outputDevice}
        </span>
      )}
      {idle.length > 0 && (
        <span>
          <span class="mark idles">{IDLE}</span> in some steps: {ranges(idle)}
        </span>
      )}
    </p>
  );
}

const AROUND = ["under3", "under2", "under1", "at-even", "over1", "over2", "over3"];

function ScaleOf(props: { by: By; around: boolean }) {
  const classes = props.around ? AROUND : Array.from({ length: LEVELS }, (_, n) => `l${n}`);
  return (
    <span class="row">
      less{" "}
      <span class="scale" aria-hidden="true">
        {classes.map((name) => (
          <i key={name} class={name} />
        ))}
      </span>{" "}
      more {titleOf(props.by)}
      {props.around && " than the mean of the devices"}
    </span>
  );
}

function Legend(props: { by: By; report: Report; around: boolean }) {
  const { balance, patterns, per_device, notes } = props.report;
  const idle = per_device.some((one) => one.idle_steps > 0) || patterns.some((one) => one.rows?.includes(0));
  return (
    <div class="legend">
      <ScaleOf by={props.by} around={props.around} />
      {idle && (
        <span>
          <i class="idle" aria-hidden="true" /> idle: it got nothing of that batch
        </span>
      )}
      {balance.idle_device_steps ? <span>{plural(balance.idle_device_steps, "idle device-step")}</span> : null}
      {balance.wasted_device_seconds ? (
        <span title={notes["balance.wasted_device_seconds"]}>
          {number(Number(balance.wasted_device_seconds.toPrecision(3)))} device-seconds waited for the slowest
        </span>
      ) : null}
    </div>
  );
}

function patternLine(pattern: Pattern, report: Report): Line {
  const steps =
    pattern.steps == null
      ? NONE
      : plural(
          pattern.steps,
          pattern.phase === "train" ? "step" : "batch",
          pattern.phase === "train" ? "steps" : "batches",
        );
  const cells = report.devices.map(({ device }) => {
    const rows = pattern.rows?.[device] ?? null;
    return {
      device,
      value: rows,
      text: rows == null ? NONE : rows === 0 ? IDLE : count(rows),
      about: aboutShard(pattern, device, report),
    };
  });
  return {
    key: `${pattern.phase} ${pattern.module} ${pattern.batch_rows} ${pattern.rows?.join()} ${pattern.first_step}`,
    title: `${pattern.phase}${pattern.batch_rows == null ? "" : ` of ${count(pattern.batch_rows)}`}`,
    note: `${pattern.module ? `${pattern.module} · ` : ""}${steps}`,
    most: null,
    cells,
  };
}

/** One line of what each device cost; null where nothing of it was measured. */
function measureLine(by: Exclude<By, "rows">, report: Report, most: number | null): Line[] | null {
  const cells = report.devices.map(({ device }) => {
    const value = measured(by, report, device);
    return { device, value, text: value == null ? NONE : SHOW[by](value), about: aboutDevice(device, report) };
  });
  if (cells.every((cell) => cell.value == null)) return null;
  return [{ key: by, title: by === "memory" ? "peak" : "median", note: "main phase", most, cells }];
}

function mostFrequent(patterns: Pattern[], enough: number): Pattern[] {
  if (patterns.length <= enough) return patterns;
  const most = new Set([...patterns].sort((a, b) => (b.steps ?? 0) - (a.steps ?? 0)).slice(0, enough));
  return patterns.filter((pattern) => most.has(pattern));
}

/** 3, 5 to 8 */
function ranges(numbers: number[]): string {
  const found: [number, number][] = [];
  for (const one of [...numbers].sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last && last[1] === one - 1) last[1] = one;
    else found.push([one, one]);
  }
  return found.map(([from, to]) => (from === to ? `${from}` : `${from} to ${to}`)).join(", ");
}
