// One chart for each metric, with a line for each run.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";

import { get, type MetricList } from "../api";
import { duration, number } from "../format";
import { drawn } from "../job/Curve";
import { Looks } from "../job/Curves";
import { columns, fetched, type Lines, type Look } from "../job/series";
import type { Run } from "./Outcomes";

const FIRST = ["loss", "eval_loss", "accuracy", "rows_per_second", "learning_rate"];
const SHOWN = 6;
const MORE = 12;
const HEIGHT = 200;

export function Overlay(props: { runs: readonly Run[] }) {
  const { runs } = props;
  const [names, setNames] = useState<string[] | null>(null);
  const [shown, setShown] = useState(SHOWN);
  const [look, setLook] = useState<Look>({ log: false, axis: "step", smoothing: 0 });
  const key = runs.map((run) => `${run.job.id} ${run.job.state}`).join(); // one that has ended has all of its points
  useEffect(() => {
    let over = false;
    const ask = (run: Run) =>
      get<MetricList>(`/v1/jobs/${run.job.id}/metrics?points=1`).then(
        (found) => found.series.map((one) => one.name),
        () => [],
      );
    void Promise.all(runs.filter((run) => run.job.attempt > 0).map(ask)).then((found) => {
      if (!over) setNames(inOrder(found.flat()));
    });
    return () => {
      over = true;
    };
  }, [key]);
  if (!names) return <p class="muted">Reading curves …</p>;
  if (!names.length) return <p class="muted">None of them has a curve.</p>;
  return (
    <>
      <Looks look={look} set={setLook} />
      <div class="curves overlaid">
        {names.slice(0, shown).map((name) => (
          <Chart key={`${name} ${key}`} name={name} runs={runs} look={look} />
        ))}
      </div>
      {names.length > shown && (
        <button class="plain" onClick={() => setShown(shown + MORE)}>
          Show {Math.min(MORE, names.length - shown)} more
        </button>
      )}
    </>
  );
}

function inOrder(names: readonly string[]): string[] {
  const counts = new Map<string, number>();
  for (const name of new Set(names)) counts.set(name, names.filter((one) => one === name).length);
  const place = (name: string) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  return [...counts.keys()].sort(
    (a, b) => place(a) - place(b) || counts.get(b)! - counts.get(a)! || a.localeCompare(b),
  );
}

function Chart(props: { name: string; runs: readonly Run[]; look: Look }) {
  const { name, runs, look } = props;
  const where = useRef<HTMLDivElement>(null);
  const figure = useRef<HTMLElement>(null);
  const [seen, setSeen] = useState(false);
  const [lines, setLines] = useState<Lines | null>(null);
  const [at, setAt] = useState<number | null>(null);
  useEffect(() => {
    const watcher = new IntersectionObserver((all) => all.some((one) => one.isIntersecting) && setSeen(true), {
      rootMargin: "300px",
    });
    watcher.observe(figure.current!);
    return () => watcher.disconnect();
  }, []);
  useEffect(() => {
    if (!seen) return;
    let over = false;
    const read = async (run: Run) => {
      const found = run.job.attempt ? await fetched(run.job.id, run.job.attempt, name, false).catch(() => null) : null;
      return found && (found.get(-1) ?? [...found.values()].at(-1));
    };
    void Promise.all(runs.map(read)).then((found) => {
      if (over) return;
      setLines(new Map(found.flatMap((points, n) => (points ? [[n, points] as const] : []))));
    });
    return () => {
      over = true;
    };
  }, [seen]);
  const data = useMemo(() => (lines?.size ? columns(lines, look, true) : null), [lines, look]);
  const shown = lines ? [...lines.keys()] : [];
  useEffect(() => {
    const node = where.current;
    if (!node || !data?.[0].length) return;
    const chart = drawn(node, data, {
      height: HEIGHT,
      log: look.log,
      along: look.axis === "step" ? number : duration,
      series: shown.map((n) => ({
        stroke: runs[n]!.colour,
        width: 1.7,
        spanGaps: true,
        points: { show: data[0].length < 3 },
      })),
      point: setAt,
    });
    const resized = new ResizeObserver(() => chart.setSize({ width: node.clientWidth, height: HEIGHT }));
    resized.observe(node);
    return () => {
      resized.disconnect();
      chart.destroy();
    };
  }, [data]);
  return (
    <figure ref={figure}>
      <figcaption>
        <b dir="auto" title={name}>
          {name}
        </b>
      </figcaption>
      <div
        ref={where}
        class="plot"
        style={{ height: `${HEIGHT}px` }}
        role="img"
        aria-label={`${name} of ${shown.length} runs by ${look.axis}`}
      />
      {data && <Values data={data} runs={shown.map((n) => runs[n]!)} at={at} />}
    </figure>
  );
}

/** The values of all runs where the pointer is, or the last ones. */
function Values(props: { data: uPlot.AlignedData; runs: readonly Run[]; at: number | null }) {
  return (
    <div class="key">
      {props.runs.map((run, n) => {
        const column = props.data[n + 1] ?? [];
        const row = props.at ?? column.length - 1;
        let value = column[row] ?? null;
        for (let back = row; value == null && back >= 0; back -= 1) value = column[back] ?? null;
        return (
          <span key={run.job.id}>
            <i style={{ background: run.colour }} />
            {number(value)}
          </span>
        );
      })}
    </div>
  );
}
