import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { number } from "../format";
import { throttled } from "../throttle";
import { appended, columns, fetched, type Lines } from "./series";
import type { Feed } from "./watch";

const HEIGHT = 120;
const AXIS = 46;
/** Devices whose values are told in words where the pointer is. */
const TOLD = 4;

export function Curve(props: { id: string; attempt: number; name: string; few: boolean; log: boolean; feed: Feed }) {
  const { id, attempt, name, log } = props;
  const figure = useRef<HTMLElement>(null);
  const [seen, setSeen] = useState(false);
  const [lines, setLines] = useState<Lines | null>(null);
  const [at, setAt] = useState<number | null>(null);
  const known = useRef(lines);
  known.current = lines;

  useEffect(() => {
    const watcher = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && setSeen(true),
      { rootMargin: "200px" },
    );
    watcher.observe(figure.current!);
    return () => watcher.disconnect();
  }, []);
  useEffect(() => {
    if (!seen) return;
    let over = false;
    const look = throttled(async () => {
      const found = await fetched(id, attempt, name, props.few);
      if (!over) setLines((known.current = found));
    });
    void look();
    const stops = [
      props.feed.onResync(() => void look()),
      props.feed.onMetric((event) => {
        if (event.name !== name || event.attempt !== attempt || !known.current) return;
        const more = appended(known.current, event);
        if (more) setLines((known.current = more));
        else void look();
      }),
    ];
    return () => {
      over = true;
      stops.forEach((stop) => stop());
    };
  }, [seen, id, attempt, name]);

  const data = useMemo(() => (lines ? columns(lines, log) : null), [lines, log]);
  const row = data && (at ?? data[0].length - 1);
  return (
    <figure ref={figure}>
      <figcaption>
        <b dir="auto" title={name}>
          {name}
        </b>{" "}
        <span class="muted">{data && row != null && row >= 0 ? told(lines!, data, row) : ""}</span>
      </figcaption>
      {data && data[0].length > 0 ? (
        <Plot
          key={`${log} ${[...lines!.keys()].join()}`}
          name={name}
          data={data}
          devices={[...lines!.keys()]}
          log={log}
          point={setAt}
        />
      ) : (
        <div class="plot" />
      )}
    </figure>
  );
}

function told(lines: Lines, data: uPlot.AlignedData, row: number): string {
  const step = data[0][row];
  const values = [...lines.keys()].map((device, n) => [device, data[n + 1]?.[row] ?? null] as const).reverse();
  const words = values
    .filter(([, value]) => value != null)
    .slice(0, TOLD)
    .map(([device, value]) => (values.length === 1 || device < 0 ? number(value) : `${number(value)} (${device})`));
  return words.length ? `${words.join(", ")} at step ${number(step)}` : `step ${number(step)}`;
}

interface PlotProps {
  name: string;
  data: uPlot.AlignedData;
  devices: number[];
  log: boolean;
  point: (row: number | null) => void;
}

function Plot(props: PlotProps) {
  const where = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  useEffect(() => {
    const node = where.current!;
    const css = getComputedStyle(document.documentElement);
    const colour = (name: string) => css.getPropertyValue(name).trim();
    const axis = {
      stroke: colour("--muted"),
      grid: { stroke: colour("--rule"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui",
      size: 22,
    };
    const few = props.data[0].length < 3;
    chart.current = new uPlot(
      {
        width: node.clientWidth || 240,
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, points: { size: 6 } },
        scales: { x: { time: false }, y: props.log ? { distr: 3 } : {} },
        axes: [
          axis,
          { ...axis, size: AXIS, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : number(tick))) },
        ],
        series: [
          {},
          ...props.devices.map((device) => ({
            stroke: colour(device < 0 || props.devices.length === 1 ? "--accent" : "--muted"),
            width: device < 0 || props.devices.length === 1 ? 1.8 : 0.8,
            spanGaps: true,
            points: { show: few },
          })),
        ],
        hooks: { setCursor: [(plot) => props.point(plot.cursor.idx ?? null)] },
      },
      props.data,
      node,
    );
    const resized = new ResizeObserver(() => chart.current?.setSize({ width: node.clientWidth, height: HEIGHT }));
    resized.observe(node);
    return () => {
      resized.disconnect();
      chart.current?.destroy();
      chart.current = null;
    };
  }, []);
  const first = useRef(true);
  useEffect(() => {
    if (!first.current) chart.current?.setData(props.data);
    first.current = false;
  }, [props.data]);
  return <div ref={where} class="plot" role="img" aria-label={`${props.name} by step`} />;
}
