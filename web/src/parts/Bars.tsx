// Where the time went: DataParallel's primitives, or what each device spent its time on.

import type { DeviceMeasures, Report, Timing } from "../api";
import { ms } from "../format";

const TIMES = [
  ["data_wait_ms", "data wait", "wait"],
  ["forward_ms", "forward", "forward"],
  ["backward_ms", "backward", "backward"],
  ["comm_ms", "communication", "comm"],
  ["optimizer_ms", "optimizer", "optimizer"],
  ["other_ms", "other", "other"],
] as const;
const PRIMITIVES = [
  ["replicate_ms", "replicate", "replicate"],
  ["scatter_ms", "scatter", "scatter"],
  ["parallel_apply_ms", "parallel_apply", "apply"],
  ["gather_ms", "gather", "gather"],
] as const;
const MOST = 16;
/** Shares of a bar that a letter of a part's name takes, and the space around the name, on a narrow page. */
const LETTER = 0.011;
const MARGIN = 0.02;

interface Part {
  name: string;
  kind: string;
  time: Timing;
}

/** `scale` is how much a full bar stands for, where several reports are compared. */
export interface Scale {
  times: number;
  primitives: number;
}

export function Bars(props: { report: Report; scale?: Scale }) {
  const { report } = props;
  const devices = report.per_device.map((one) => ({ name: `device ${one.device}`, parts: partsOf(one) }));
  const shown = [...devices]
    .sort((a, b) => total(b.parts) - total(a.parts))
    .slice(0, MOST)
    .sort((a, b) => devices.indexOf(a) - devices.indexOf(b));
  const { times, primitives: longest } = props.scale ?? scaleOf([report]);
  const primitives = primitivesOf(report);
  const unmeasured = TIMES.filter(([field]) => report.per_device.every((one) => one[field] == null));
  return (
    <div>
      {primitives.length > 0 && (
        <>
          <h2>
            DataParallel's primitives <small>in all measured steps; below, in a typical one</small>
          </h2>
          <div class="bars">
            <Bar name="" parts={primitives} most={longest} />
          </div>
          <Key parts={PRIMITIVES.map(([field, name, kind]) => [name, kind, report.primitives?.[field]?.p50])} />
        </>
      )}
      {times > 0 && devices.length > 0 && (
        <>
          <h2 class={primitives.length ? "later" : ""}>
            Where each device's time went{" "}
            <small>{shown.length < devices.length ? `the ${shown.length} longest of ${devices.length}` : ""}</small>
          </h2>
          <div class="bars">
            {shown.map((one) => (
              <Bar key={one.name} name={one.name} parts={one.parts} most={times} />
            ))}
          </div>
          <Key
            parts={TIMES.filter((part) => !unmeasured.includes(part)).map(([, name, kind]) => [name, kind, undefined])}
          />
        </>
      )}
      {!hasWholeTimes(report) && (
        <p class="muted">Made by an earlier version: the times are those of the measured steps alone.</p>
      )}
      {unmeasured.map(([field, name]) => (
        <p key={field} class="muted">
          {name}: not measured{report.notes[`per_device.${field}`] ? `, ${report.notes[`per_device.${field}`]}` : ""}
        </p>
      ))}
    </div>
  );
}

/** Whether totals are those of all steps. */
const hasWholeTimes = (report: Report): boolean =>
  report.per_device.every((one) => partsOf(one).every((part) => part.time.measured_steps != null));

export const hasTimes = (report: Report): boolean => scaleOf([report]).times > 0;

/** One scale for all bars of some reports. */
export function scaleOf(reports: Report[]): Scale {
  return {
    times: Math.max(0, ...reports.flatMap((report) => report.per_device.map((one) => total(partsOf(one))))),
    primitives: Math.max(0, ...reports.map((report) => total(primitivesOf(report)))),
  };
}

function partsOf(one: DeviceMeasures): Part[] {
  return TIMES.flatMap(([field, name, kind]): Part[] => (one[field] ? [{ name, kind, time: one[field] }] : []));
}

function primitivesOf(report: Report): Part[] {
  return PRIMITIVES.flatMap(([field, name, kind]): Part[] => {
    const time = report.primitives?.[field];
    return time ? [{ name, kind, time }] : [];
  });
}

function Bar(props: { name: string; parts: Part[]; most: number }) {
  const sum = total(props.parts);
  return (
    <>
      <span>{props.name}</span>
      <div
        class="bar"
        role="img"
        aria-label={`${props.name} ${props.parts.map((part) => `${part.name} ${ms(part.time.total)}`).join(", ")}`}
      >
        {props.parts.map((part) => {
          const share = props.most > 0 ? part.time.total / props.most : 0;
          return (
            <span
              key={part.name}
              class={`p-${part.kind}`}
              style={{ flex: `0 0 ${(share * 100).toFixed(3)}%`, padding: share < 0.02 ? 0 : undefined }}
              title={`${part.name}: ${ms(part.time.total)} in all${part.time.error ? ` give or take ${ms(part.time.error)}` : ""}, typically ${ms(part.time.p50)}, p95 ${ms(part.time.p95)}`}
            >
              {share > LETTER * part.name.length + MARGIN ? part.name : ""}
            </span>
          );
        })}
      </div>
      <span class="muted">{ms(sum)}</span>
    </>
  );
}

function Key(props: { parts: (readonly [string, string, number | undefined])[] }) {
  return (
    <div class="key">
      {props.parts.map(([name, kind, typical]) => (
        <span key={name}>
          <i class={`p-${kind}`} />
          {name}
          {typical == null ? "" : ` ${ms(typical)}`}
        </span>
      ))}
    </div>
  );
}

const total = (parts: Part[]) => parts.reduce((sum, part) => sum + part.time.total, 0);
