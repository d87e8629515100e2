// Numbers and times for people. What is not known is a dash, never a zero.

export const NONE = "–";

export function count(value: number | null | undefined): string {
  return value == null ? NONE : value.toLocaleString("en");
}

/** A number to about four digits. */
export function number(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return NONE;
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return count(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

export function ms(value: number | null | undefined): string {
  if (value == null) return NONE;
  if (value >= 1000) return `${number(value / 1000)} s`;
  return `${value < 10 ? Number(value.toPrecision(2)) : Math.round(value)} ms`;
}

export function percent(fraction: number | null | undefined): string {
  return fraction == null ? NONE : `${(fraction * 100).toFixed(fraction > 0 && fraction < 0.1 ? 1 : 0)} %`;
}

const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value: number | null | undefined): string {
  if (value == null) return NONE;
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? size : Number(size.toPrecision(3))} ${UNITS[unit]}`;
}

const SCALES: [number, string][] = [
  [1e15, "P"],
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

/** Floating-point operations: "2.1 TFLOP". */
export function flop(value: number | null | undefined): string {
  if (value == null) return NONE;
  const [limit, unit] = SCALES.find(([size]) => value >= size) ?? [1, ""];
  return `${Number((value / limit).toPrecision(3))} ${unit}FLOP`;
}

export function flopRate(value: number | null | undefined): string {
  return value == null ? NONE : `${flop(value)}/s`;
}

export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return NONE;
  if (seconds < 10) return `${Number(seconds.toPrecision(2))} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = seconds / 60;
  if (minutes < 90) return `${Math.round(minutes)} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${Math.round(minutes % 60)} min`;
  return `${Math.round(hours / 24)} days`;
}

export function between(from: string | null, to: string | null, now: number): number | null {
  if (!from) return null;
  return Math.max(0, ((to ? Date.parse(to) : now) - Date.parse(from)) / 1000);
}

export function clock(at: string | null): string {
  if (!at) return NONE;
  const time = new Date(at);
  const sameDay = time.toDateString() === new Date().toDateString();
  const hours = time.toLocaleTimeString("en-GB");
  return sameDay ? hours : `${time.toLocaleDateString("sv")} ${hours}`;
}

export function shape(dims: number[] | null | undefined): string {
  return dims == null ? NONE : `[${dims.join(", ")}]`;
}

export function plural(amount: number, noun: string, several = `${noun}s`): string {
  return `${count(amount)} ${amount === 1 ? noun : several}`;
}

/** What a finding has cost, where that is known. */
export function findingCost(one: { cost_device_seconds?: number | null; cost_share?: number | null }): string {
  const seconds = one.cost_device_seconds;
  if (seconds === undefined || seconds === null) {
    return "";
  }
  const digits = seconds < 10 ? 2 : seconds < 100 ? 1 : 0;
  const spent =
    seconds >= 3600 ? `${(seconds / 3600).toFixed(1)} device-hours` : `${seconds.toFixed(digits)} device-seconds`;
  const share =
    one.cost_share === undefined || one.cost_share === null ? "" : `, ${Math.round(100 * one.cost_share)}% of the run`;
  return `(costs ${spent}${share})`;
}

/** Names of devices, or numbers of ranks, with runs in short: "cuda:0-3, cuda:6", "8-15". */
export function runs(names: (string | number)[]): string {
  const found: { kind: string; first: number; last: number }[] = [];
  for (const name of names) {
    const [, kind = "", digits = ""] = /^(.*?)(\d*)$/.exec(String(name)) ?? [];
    const at = Number(digits);
    const before = found.at(-1);
    if (digits !== "" && before?.kind === kind && before.last === at - 1) before.last = at;
    else found.push(digits === "" ? { kind: String(name), first: -1, last: -1 } : { kind, first: at, last: at });
  }
  return found
    .map(({ kind, first, last }) => (first < 0 ? kind : first === last ? `${kind}${first}` : `${kind}${first}-${last}`))
    .join(", ");
}

/** What a job asks for: "4", or "4 of each of 2 nodes". */
export function asked(job: { devices: number; nodes: number }): string {
  return job.nodes > 1 ? `${count(job.devices)} of each of ${count(job.nodes)} nodes` : count(job.devices);
}

/** Where a job or an attempt is: its node, or the one that leads and how many there are beside it. */
export function leader(placement: { node: string }[]): string | undefined {
  return placement.length > 1
    ? `${placement[0]!.node} and ${plural(placement.length - 1, "other")}`
    : placement[0]?.node;
}
