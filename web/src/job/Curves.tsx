// Loss and other series, one small chart for each name; each reads its own when it comes into sight.

import { useEffect, useRef, useState } from "preact/hooks";

import { get, type MetricList } from "../api";
import { count } from "../format";
import { Curve } from "./Curve";
import type { Look } from "./series";
import type { Feed } from "./watch";

const FIRST = ["loss", "eval_loss", "accuracy", "learning_rate", "rows_per_second"];
/** Charts that are there at first, and that come with each wish for more. */
const SHOWN = 6;
const MORE = 24;
/** So few series are read with one request. */
const FEW = 12;

export function Curves(props: { id: string; attempt: number; feed: Feed; running: boolean }) {
  const [names, setNames] = useState<string[] | null>(null);
  const [shown, setShown] = useState(SHOWN);
  const [filter, setFilter] = useState("");
  const [look, setLook] = useState<Look>({ log: false, axis: "step", smoothing: 0 });
  const [large, setLarge] = useState("");
  const known = useRef(new Set<string>());

  const read = () =>
    get<MetricList>(`/v1/jobs/${props.id}/metrics?points=1`).then(
      (found) => {
        for (const one of found.series) known.current.add(one.name);
        setNames(inOrder(known.current));
      },
      () => setNames((before) => before ?? []),
    );
  useEffect(() => {
    known.current.clear();
    if (props.attempt > 0) void read();
    else setNames([]);
    const stops = [
      props.feed.onResync(() => void read()),
      props.feed.onMetric((event) => {
        if (known.current.has(event.name)) return;
        known.current.add(event.name);
        setNames(inOrder(known.current));
      }),
    ];
    return () => stops.forEach((stop) => stop());
  }, [props.id, props.attempt]);

  const wanted = (names ?? []).filter((name) => name.toLowerCase().includes(filter.toLowerCase()));
  return (
    <>
      <div class="row">
        <h2 class="grow">Curves {wanted.length > SHOWN && <small>{count(wanted.length)} series</small>}</h2>
        {names && names.length > SHOWN && (
          <label>
            Find{" "}
            <input type="search" size={10} value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
          </label>
        )}
      </div>
      {names && names.length > 0 && <Looks look={look} set={setLook} />}
      {names?.length === 0 && (
        <p class="muted">
          No series{props.running ? " yet" : ""}. Recipes send their loss; a script sends its own with{" "}
          <code>job.log(name, value)</code>.
        </p>
      )}
      <div class="curves">
        {wanted.slice(0, shown).map((name) => (
          <Curve
            key={name}
            id={props.id}
            attempt={props.attempt}
            name={name}
            few={names!.length <= FEW}
            look={look}
            large={large === name}
            enlarge={() => setLarge(large === name ? "" : name)}
            feed={props.feed}
          />
        ))}
      </div>
      {wanted.length > shown && (
        <button class="plain" onClick={() => setShown(shown + MORE)}>
          Show {count(Math.min(MORE, wanted.length - shown))} more
        </button>
      )}
    </>
  );
}

export function Looks(props: { look: Look; set: (look: Look) => void }) {
  const { look, set } = props;
  return (
    <div class="row looks">
      <label>
        Smoothing{" "}
        <input
          type="range"
          min={0}
          max={0.99}
          step={0.01}
          value={look.smoothing}
          onInput={(event) => set({ ...look, smoothing: Number(event.currentTarget.value) })}
        />{" "}
        <output>{look.smoothing.toFixed(2)}</output>
      </label>
      <label>
        Along{" "}
        <select
          value={look.axis}
          onChange={(event) => set({ ...look, axis: event.currentTarget.value as Look["axis"] })}
        >
          <option value="step">steps</option>
          <option value="time">time</option>
        </select>
      </label>
      <label>
        <input
          type="checkbox"
          checked={look.log}
          onChange={(event) => set({ ...look, log: event.currentTarget.checked })}
        />{" "}
        log scale
      </label>
    </div>
  );
}

const inOrder = (names: Iterable<string>) => [...names].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
const place = (name: string) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
