// Loss and other series, one small chart for each name; each reads its own when it comes into sight.

import { useEffect, useRef, useState } from "preact/hooks";

import { get, type MetricList } from "../api";
import { count } from "../format";
import { Curve } from "./Curve";
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
  const [log, setLog] = useState(false);
  const known = useRef(new Set<string>());

  const look = () =>
    get<MetricList>(`/v1/jobs/${props.id}/metrics?points=1`).then(
      (found) => {
        for (const one of found.series) known.current.add(one.name);
        setNames(inOrder(known.current));
      },
      () => setNames((before) => before ?? []),
    );
  useEffect(() => {
    known.current.clear();
    if (props.attempt > 0) void look();
    else setNames([]);
    const stops = [
      props.feed.onResync(() => void look()),
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
        {names && names.length > 0 && (
          <label>
            <input type="checkbox" checked={log} onChange={(event) => setLog(event.currentTarget.checked)} /> log scale
          </label>
        )}
      </div>
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
            log={log}
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

const inOrder = (names: Iterable<string>) => [...names].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
const place = (name: string) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
