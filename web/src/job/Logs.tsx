// Logs of devices side by side: the end as it grows, any line or step of the whole, and a search over all of it.

import { useState } from "preact/hooks";
import { LogPane, type Target } from "./LogPane";
import { ALL_STREAMS, OWN_STREAMS } from "./lines";
import type { Feed } from "./watch";

const MOST = 8;

export interface LogsProps {
  id: string;
  attempt: number;
  devices: number;
  chosen: number[];
  choose: (devices: number[]) => void;
  feed: Feed;
  running: boolean;
  /** Whether it is a script, whose own lines are shown alone at first. */
  script: boolean;
}

export function Logs(props: LogsProps) {
  const { chosen } = props;
  const [search, setSearch] = useState("");
  const [unit, setUnit] = useState<"step" | "line">("step");
  const [number, setNumber] = useState("");
  const [target, setTarget] = useState<Target>({ to: "end" });
  const [shards, setShards] = useState(!props.script);
  const streams = shards ? ALL_STREAMS : OWN_STREAMS;
  const toggle = (device: number) =>
    props.choose(
      chosen.includes(device)
        ? chosen.filter((one) => one !== device)
        : [...chosen, device].slice(-MOST).sort((a, b) => a - b),
    );
  const go = (wanted: Target) => {
    setSearch("");
    setTarget({ ...wanted });
  };
  return (
    <>
      <div class="row tools">
        <h2>Logs</h2>
        {props.devices > 1 && (
          <span class="switch many" role="group" aria-label={`Devices whose logs are shown, ${MOST} at most`}>
            {Array.from({ length: props.devices }, (_, device) => (
              <button
                key={device}
                aria-pressed={chosen.includes(device)}
                aria-label={`device ${device}`}
                onClick={() => toggle(device)}
              >
                {device}
              </button>
            ))}
          </span>
        )}
        <label title="Lines that say what each device got of every batch">
          <input type="checkbox" checked={shards} onChange={(event) => setShards(event.currentTarget.checked)} /> Shard
          lines
        </label>
        <label>
          Search{" "}
          <input
            type="search"
            size={18}
            value={search}
            placeholder="the whole log"
            maxLength={200}
            onInput={(event) => setSearch(event.currentTarget.value)}
          />
        </label>
        <form
          class="row"
          onSubmit={(event) => {
            event.preventDefault();
            if (number) go({ to: unit, number: Number(number) });
          }}
        >
          <select
            aria-label="Go to a step or a line"
            value={unit}
            onChange={(event) => setUnit(event.currentTarget.value as "step")}
          >
            <option value="step">Step</option>
            <option value="line">Line</option>
          </select>
          <input
            type="number"
            aria-label="its number"
            min={unit === "line" ? 1 : 0}
            value={number}
            class="short"
            onInput={(event) => setNumber(event.currentTarget.value)}
          />
          <button>Go</button>
        </form>
        <button onClick={() => go({ to: "line", number: 1 })}>Start</button>
        <button onClick={() => go({ to: "end" })}>End</button>
        <a
          href={`/v1/jobs/${props.id}/logs?limit=10000&attempt=${props.attempt}&stream=${streams}`}
          target="_blank"
          rel="noopener"
        >
          as JSON
        </a>
      </div>
      <div class="logs">
        {chosen.map((device) => (
          <LogPane
            key={`${device} ${streams}`}
            source={{ id: props.id, attempt: props.attempt, device, streams }}
            search={search.trim()}
            target={target}
            feed={props.feed}
            running={props.running}
            show={(seq) => go({ to: "line", number: seq, device })}
          />
        ))}
      </div>
      {chosen.length === 0 && <p class="muted">Choose a device to see its log.</p>}
    </>
  );
}
