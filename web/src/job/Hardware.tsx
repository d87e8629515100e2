// What the node samples of each device once a second: one small chart for each, of the series that is chosen.

import { useEffect, useMemo, useState } from "preact/hooks";

import { type Bucket, get, type MetricList, type Series } from "../api";
import { bytes, count, duration, number, percent } from "../format";

const POINTS = 60;
const POLL_MS = 2000;
/** Devices that are drawn at first. */
const SHOWN = 8;
const WIDTH = 240;
const HEIGHT = 56;

/** The series that are offered, in this order: title, how a value is written, and the end of its axis where that is known. */
const SERIES: Record<string, [string, (value: number | null) => string, number?]> = {
  utilisation: ["GPU busy", percent, 1],
  memory_used_bytes: ["GPU memory", bytes],
  power_watts: ["Power", (value) => `${number(value)} W`],
  temperature_celsius: ["Temperature", (value) => `${number(value)} °C`],
  sm_clock_mhz: ["SM clock", (value) => `${number(value)} MHz`],
  memory_clock_mhz: ["Memory clock", (value) => `${number(value)} MHz`],
  cpu_cores: ["CPU cores", (value) => number(value == null ? null : Number(value.toFixed(2)))],
  resident_bytes: ["Resident memory", bytes],
  anonymous_bytes: ["Anonymous memory", bytes],
  runnable_threads: ["Runnable threads", number],
};

export function Hardware(props: { id: string; attempt: number; running: boolean; devices: number }) {
  const { id, attempt, running } = props;
  const [series, setSeries] = useState<Series[]>([]);
  const [chosen, setChosen] = useState("");
  const [shown, setShown] = useState(SHOWN);
  useEffect(() => {
    let timer = 0;
    let left = false;
    const read = async () => {
      if (!document.hidden) {
        const found = await get<MetricList>(
          `/v1/jobs/${id}/metrics?source=hardware&points=${POINTS}&attempt=${attempt}`,
        ).catch(() => null);
        if (left) return;
        if (found) setSeries(found.series);
      }
      if (running) timer = window.setTimeout(read, POLL_MS);
    };
    setSeries([]);
    if (attempt > 0) void read();
    return () => {
      left = true;
      window.clearTimeout(timer);
    };
  }, [id, attempt, running]);

  const names = useMemo(() => Object.keys(SERIES).filter((name) => series.some((one) => one.name === name)), [series]);
  if (!names.length) return null;
  const name = names.includes(chosen) ? chosen : names[0]!;
  const wanted = series.filter((one) => one.name === name && one.buckets.length > 0);
  const top =
    SERIES[name]![2] ?? Math.max(...wanted.flatMap((one) => one.buckets.map((bucket) => bucket.maximum ?? 0)));
  const seconds = Math.max(0, ...wanted.map((one) => one.buckets.at(-1)!.last.step));
  return (
    <section class="panel">
      <div class="row">
        <h2 class="grow">
          Hardware <small>{duration(seconds)}</small>
        </h2>
        <label>
          Show{" "}
          <select value={name} onChange={(event) => setChosen(event.currentTarget.value)}>
            {names.map((one) => (
              <option key={one} value={one}>
                {SERIES[one]![0]}
              </option>
            ))}
          </select>
        </label>
      </div>
      <div class="curves">
        {wanted.slice(0, shown).map((one) => (
          <Chart key={one.device} series={one} top={top || 1} />
        ))}
      </div>
      {wanted.length > shown && (
        <button class="plain" onClick={() => setShown(wanted.length)}>
          Show {count(wanted.length - shown)} more devices
        </button>
      )}
      {wanted.length < props.devices && (
        <p class="muted small">Devices of one process share it: the first one has its series.</p>
      )}
    </section>
  );
}

function Chart(props: { series: Series; top: number }) {
  const { buckets, name, device } = props.series;
  const show = SERIES[name]![1];
  const last = buckets.at(-1)!;
  const whole = buckets.reduce((sum, one) => sum + one.count, 0);
  const mean = buckets.reduce((sum, one) => sum + (one.mean ?? 0) * one.count, 0) / whole;
  const least = Math.min(...buckets.map((one) => one.minimum ?? Infinity));
  const most = Math.max(...buckets.map((one) => one.maximum ?? -Infinity));
  const words = `mean ${show(mean)}, ${show(least)} to ${show(most)}`;
  return (
    <figure>
      <figcaption title={words}>
        <b>Device {device}</b> <span class="muted">{show(last.mean)} now</span>
      </figcaption>
      <svg
        class="hardware"
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${SERIES[name]![0]} of device ${device}: ${words}`}
      >
        <polygon points={band(buckets, props.top)} />
        <polyline points={line(buckets, props.top)} />
      </svg>
      <p class="muted small">{words}</p>
    </figure>
  );
}

function places(buckets: Bucket[], top: number, value: (one: Bucket) => number | null): string[] {
  const end = Math.max(1, buckets.at(-1)!.last.step);
  return buckets.map((one) => {
    const x = ((one.first.step + one.last.step) / 2 / end) * WIDTH;
    return `${x.toFixed(1)},${(HEIGHT - 1 - (Math.min(top, value(one) ?? 0) / top) * (HEIGHT - 2)).toFixed(1)}`;
  });
}

const line = (buckets: Bucket[], top: number) => places(buckets, top, (one) => one.mean).join(" ");

/** From the least to the greatest value of each bucket. */
function band(buckets: Bucket[], top: number): string {
  return [...places(buckets, top, (one) => one.maximum), ...places(buckets, top, (one) => one.minimum).reverse()].join(
    " ",
  );
}
