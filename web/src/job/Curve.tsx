import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { download } from "../download";
import { duration, number } from "../format";
import { Menu } from "../parts/Menu";
import { throttled } from "../throttle";
import { attempt as tried } from "../toast";
import { type Axis, appended, asCsv, columns, fetched, type Lines, type Look } from "./series";
import type { Feed } from "./watch";

const HEIGHT = 120;
const LARGE = 360;
const AXIS = 46;
/** Devices whose values are told in words where the pointer is. */
const TOLD = 4;

interface Props {
  id: string;
  attempt: number;
  name: string;
  few: boolean;
  look: Look;
  large: boolean;
  enlarge: () => void;
  feed: Feed;
}

export function Curve(props: Props) {
  const { id, attempt, name, look } = props;
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
    const read = throttled(async () => {
      const found = await fetched(id, attempt, name, props.few);
      if (!over) setLines((known.current = found));
    });
    void read();
    const stops = [
      props.feed.onResync(() => void read()),
      props.feed.onMetric((event) => {
        if (event.name !== name || event.attempt !== attempt || !known.current) return;
        const more = appended(known.current, event);
        if (more) setLines((known.current = more));
        else void read();
      }),
    ];
    return () => {
      over = true;
      for (const stop of stops) stop();
    };
  }, [seen, id, attempt, name]);

  const data = useMemo(() => (lines ? columns(lines, look) : null), [lines, look]);
  const row = data && (at ?? data[0].length - 1);
  const save = () =>
    tried(async () => download(`${name.replaceAll("/", "_")}.csv`, await asCsv(id, attempt, name), "text/csv"));
  const devices = lines ? [...lines.keys()] : [];
  return (
    <figure ref={figure} class={props.large ? "large" : ""}>
      <figcaption>
        <b dir="auto" title={name}>
          {name}
        </b>{" "}
        <span class="muted ellipsis grow">
          {data && row != null && row >= 0 ? told(lines!, data, row, look.axis) : ""}
        </span>
        <Menu
          label={`Actions on the curve ${name}`}
          actions={[
            { title: props.large ? "Make it small" : "Enlarge", act: props.enlarge },
            { title: "Download as CSV", act: () => void save() },
          ]}
        >
          ⋯
        </Menu>
      </figcaption>
      {data && data[0].length > 0 ? (
        <Plot
          key={`${look.log} ${look.axis} ${devices.join()} ${props.large}`}
          name={name}
          data={data}
          devices={devices}
          look={look}
          height={props.large ? LARGE : HEIGHT}
          point={setAt}
        />
      ) : (
        <div class="plot" />
      )}
    </figure>
  );
}

function told(lines: Lines, data: uPlot.AlignedData, row: number, axis: Axis): string {
  const place = data[0][row];
  const where = axis === "step" ? `step ${number(place)}` : duration(place);
  const values = [...lines.keys()].map((device, n) => [device, data[n + 1]?.[row] ?? null] as const).reverse();
  const words = values
    .filter(([, value]) => value != null)
    .slice(0, TOLD)
    .map(([device, value]) => (values.length === 1 || device < 0 ? number(value) : `${number(value)} (${device})`));
  return words.length ? `${words.join(", ")} at ${where}` : where;
}

interface PlotProps {
  name: string;
  data: uPlot.AlignedData;
  devices: readonly number[];
  look: Look;
  height: number;
  point: (row: number | null) => void;
}

function Plot(props: PlotProps) {
  const { look } = props;
  const where = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  useEffect(() => {
    const node = where.current!;
    const colour = colours();
    const few = props.data[0].length < 3;
    const main = (device: number) => device < 0 || props.devices.length === 1;
    chart.current = drawn(node, props.data, {
      height: props.height,
      log: look.log,
      along: look.axis === "step" ? number : duration,
      series: props.devices.map((device) => ({
        stroke: colour(main(device) ? "--accent" : "--muted"),
        width: main(device) ? 1.8 : 0.8,
        spanGaps: true,
        points: { show: few },
      })),
      point: props.point,
    });
    const resized = new ResizeObserver(() => chart.current?.setSize({ width: node.clientWidth, height: props.height }));
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
  return (
    <div
      ref={where}
      class="plot"
      style={{ height: `${props.height}px` }}
      role="img"
      aria-label={`${props.name} by ${look.axis}`}
    />
  );
}

/** Reads colours of the theme by the names of their variables. */
export function colours(): (name: string) => string {
  const css = getComputedStyle(document.documentElement);
  return (name) => css.getPropertyValue(name).trim();
}

export interface Drawing {
  height: number;
  log: boolean;
  along: (place: number) => string;
  series: uPlot.Series[];
  point?: (row: number | null) => void;
}

/** A chart in a node: drag to look closer, double-click to see all again. */
export function drawn(node: HTMLElement, data: uPlot.AlignedData, how: Drawing): uPlot {
  const colour = colours();
  const axis = {
    stroke: colour("--muted"),
    grid: { stroke: colour("--rule"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui",
    size: 22,
  };
  const written = (write: (value: number) => string) => (_: uPlot, ticks: number[]) =>
    ticks.map((tick) => (tick == null ? "" : write(tick)));
  return new uPlot(
    {
      width: node.clientWidth || 240,
      height: how.height,
      legend: { show: false },
      cursor: { y: false, points: { size: 6 } },
      scales: { x: { time: false }, y: how.log ? { distr: 3 } : {} },
      axes: [
        { ...axis, values: written(how.along) },
        { ...axis, size: AXIS, values: written(number) },
      ],
      series: [{}, ...how.series],
      hooks: { setCursor: [(plot) => how.point?.(plot.cursor.idx ?? null)] },
    },
    data,
    node,
  );
}
