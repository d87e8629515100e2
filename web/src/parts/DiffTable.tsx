// Two reports in numbers: what each device got and cost in both, and how many times as much.

import type { ReportDiff, ValuePair } from "../api";
import { bytes, count, flop, flopRate, ms, NONE, number, percent } from "../format";
import { Findings } from "./Findings";

export type Diff = ReportDiff;
type Pair = ValuePair;
type Field = Exclude<keyof ReportDiff["per_device"][number], "device">;

const COLUMNS: [Field, string, (value: number) => string][] = [
  ["rows", "rows", count],
  ["share", "share", percent],
  ["idle_steps", "idle steps", count],
  ["forward_ms", "forward", ms],
  ["backward_ms", "backward", ms],
  ["data_wait_ms", "data wait", ms],
  ["comm_ms", "communication", ms],
  ["ms_per_row", "a row", ms],
  ["rows_per_second", "rows/s", number],
  ["tokens_per_second", "tokens/s", number],
  ["flop_per_second", "FLOP/s", flopRate],
  ["mfu", "MFU", percent],
  ["memory_peak_bytes", "peak memory", bytes],
];
/** A ratio is noted from so much more, or less, on. */
const NOTED = 1.1;
const SHOWN: Record<string, (value: number) => string> = {
  flop_per_step: flop,
  flop_per_second: flopRate,
  mfu: percent,
};
const TITLES: Record<string, string> = {
  flop_per_step: "FLOP per step",
  flop_per_second: "FLOP per second",
  mfu: "MFU",
};

export function DiffTable(props: { diff: Diff }) {
  const { diff } = props;
  const columns = COLUMNS.filter(([field]) =>
    diff.per_device.some((one) => one[field].this != null || one[field].against != null),
  );
  const others = [
    ...Object.entries(diff.throughput),
    ...Object.entries(diff.primitives ?? {}),
    ...Object.entries(diff.balance),
  ].filter(([, pair]) => pair.this != null || pair.against != null);
  return (
    <>
      <h2>
        Device by device{" "}
        <small>this run, then the other, and this one over the other; times are those of a typical step</small>
      </h2>
      <div class="scroll" tabIndex={0} role="group" aria-label="Device by device">
        <table class="diff">
          <thead>
            <tr>
              <th scope="col">Device</th>
              {columns.map(([field, title]) => (
                <th key={field} class="n" scope="col">
                  {title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {diff.per_device.map((one) => (
              <tr key={Number(one.device)}>
                <td>{Number(one.device)}</td>
                {columns.map(([field, , show]) => (
                  <td key={field} class="n">
                    <PairOf pair={one[field]} show={show} />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <div class="columns even below">
        <div>
          <h2>As a whole</h2>
          <table class="diff">
            <tbody>
              {others.map(([field, pair]) => (
                <tr key={field}>
                  <th scope="row">{TITLES[field] ?? field.replace(/_ms$/, "").replaceAll("_", " ")}</th>
                  <td class="n">
                    <PairOf pair={pair} show={SHOWN[field] ?? (field.endsWith("_ms") ? ms : number)} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        <div>
          {diff.findings.this_only.length > 0 && (
            <>
              <h2>Found in this run alone</h2>
              <Findings findings={diff.findings.this_only} running={false} />
            </>
          )}
          {diff.findings.against_only.length > 0 && (
            <>
              <h2>Found in the other alone</h2>
              <Findings findings={diff.findings.against_only} running={false} />
            </>
          )}
          {diff.findings.both.length > 0 && <p class="muted">Found in both: {diff.findings.both.join(", ")}</p>}
        </div>
      </div>
    </>
  );
}

function PairOf(props: { pair: Pair; show: (value: number) => string }) {
  const { pair } = props;
  const noted = pair.ratio != null && (pair.ratio >= NOTED || pair.ratio <= 1 / NOTED);
  return (
    <>
      {words(pair.this, props.show)} <span class="muted">· {words(pair.against, props.show)}</span>
      {noted && <b class="ratio"> {number(Number(pair.ratio!.toPrecision(3)))}×</b>}
    </>
  );
}

function words(value: Pair["this"], show: (value: number) => string): string {
  if (value == null) return NONE;
  if (typeof value === "string") return value;
  return show(typeof value === "number" ? value : value.p50);
}
