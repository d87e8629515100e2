// Loss and other series, one small chart for each name; the job's own value in front, those of devices behind.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import type { Series } from "../api";
import { number } from "../format";

const FIRST = ["loss", "eval_loss", "accuracy", "learning_rate", "rows_per_second"];
const HEIGHT = 130;

export function Curves(props: { series: Series[] }) {
  const names = [...new Set(props.series.map((one) => one.name))].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
  if (!names.length) return <p class="muted">No series yet. Recipes send their loss; a script sends its own with <code>job.log(name, value)</code>.</p>;
  return (
    <div class="curves">
      {names.map((name) => <Curve key={name} name={name} series={props.series.filter((one) => one.name === name)} />)}
    </div>
  );
}

const place = (name: string) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);

function Curve(props: { name: string; series: Series[] }) {
  const where = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  const shown = [...props.series].sort((a, b) => b.device - a.device);
  const points = shown.map(pointsOf);
  const last = points.at(-1)?.at(-1);
  const layout = shown.map((one) => one.device).join();

  useEffect(() => {
    const node = where.current!;
    const css = getComputedStyle(document.documentElement);
    const colour = (name: string) => css.getPropertyValue(name).trim();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false }, font: "11px system-ui", size: 22 };
    chart.current = new uPlot(
      {
        width: node.clientWidth || 240,
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, points: { size: 6 } },
        scales: { x: { time: false } },
        axes: [axis, { ...axis, size: 46, values: (_, ticks) => ticks.map((tick) => number(tick)) }],
        series: [
          {},
          ...shown.map((one) => ({
            label: one.device < 0 ? "job" : `device ${one.device}`,
            stroke: colour(one.device < 0 ? "--accent" : "--muted"),
            width: one.device < 0 ? 1.8 : 0.8,
            spanGaps: true,
            points: { show: pointsOf(one).length < 3 },
          })),
        ],
      },
      join(points),
      node,
    );
    const resized = new ResizeObserver(() => chart.current?.setSize({ width: node.clientWidth, height: HEIGHT }));
    resized.observe(node);
    return () => {
      resized.disconnect();
      chart.current?.destroy();
      chart.current = null;
    };
  }, [layout]);
  useEffect(() => chart.current?.setData(join(points)), [props.series]);

  return (
    <figure>
      <figcaption dir="auto"><b>{props.name}</b> <span class="muted">{last ? `${number(last[1])} at step ${number(last[0])}` : ""}</span></figcaption>
      <div ref={where} role="img" aria-label={`${props.name} by step${last ? `, now ${number(last[1])}` : ""}`} />
    </figure>
  );
}

/** Step and value, in order; a bucket of many points stands for them with its mean. */
function pointsOf(one: Series): [number, number | null][] {
  if (one.points.length) return one.points.map((point) => [point.step, point.value]);
  return one.buckets.map((bucket) => [bucket.last.step, bucket.mean]);
}

function join(series: [number, number | null][][]): uPlot.AlignedData {
  const steps = [...new Set(series.flatMap((points) => points.map(([step]) => step)))].sort((a, b) => a - b);
  const at = new Map(steps.map((step, index) => [step, index]));
  const columns = series.map((points) => {
    const column: (number | null)[] = new Array<null>(steps.length).fill(null);
    for (const [step, value] of points) column[at.get(step)!] = value;
    return column;
  });
  return [steps, ...columns];
}
