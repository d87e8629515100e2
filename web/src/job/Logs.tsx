// Logs of devices side by side or as one: the end as it grows, any line or step of the whole, and what fits a filter of all
// of it. What is chosen is in the address.

import { useEffect, useMemo, useState } from "preact/hooks";

import { show as shownText } from "../api";
import { download } from "../download";
import { go as goTo, place, withQuery } from "../router";
import { attempt as tried } from "../toast";
import { LogPane, type Target } from "./LogPane";
import { LEVELS, type Level } from "./levels";
import { ALL_STREAMS, OWN_STREAMS } from "./lines";
import { MergedLog } from "./MergedLog";
import type { Wanted } from "./matches";
import type { Feed } from "./watch";

const MOST = 8;
const REST_MS = 300;
/** Requests that a download may take, each for ten thousand lines. */
const PAGES = 500;
const STREAMS = ["stdout", "stderr", "service"] as const;
const SHARD = "shard";

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
  const query = place.value.searchParams;
  const first = props.script ? OWN_STREAMS : ALL_STREAMS;
  const streams = query.get("streams") || first;
  const level = levelIn(query.get("level"));
  const merged = query.get("merged") === "yes";
  const given = query.get("find") ?? "";
  const [search, setSearch] = useState(given);
  const [unit, setUnit] = useState<"step" | "line">("step");
  const [number, setNumber] = useState("");
  const [target, setTarget] = useState<Target>({ to: "end" });
  const set = (changes: Record<string, string>) => goTo(withQuery(changes), "replace");
  useEffect(() => {
    if (search.trim() === given) return;
    const timer = setTimeout(() => set({ find: search.trim() }), REST_MS);
    return () => clearTimeout(timer);
  }, [search]);
  const wanted: Wanted = useMemo(() => ({ search: search.trim(), level }), [search, level]);
  const on = streams === ALL_STREAMS ? [...STREAMS, SHARD] : streams.split(",");
  const toggleStream = (name: string) => {
    const next = on.includes(name) ? on.filter((one) => one !== name) : [...on, name];
    const all =
      next.length === STREAMS.length + 1 ? ALL_STREAMS : [...STREAMS, SHARD].filter((one) => next.includes(one)).join();
    if (all) set({ streams: all === first ? "" : all });
  };
  const toggle = (device: number) =>
    props.choose(
      chosen.includes(device)
        ? chosen.filter((one) => one !== device)
        : [...chosen, device].slice(-MOST).sort((a, b) => a - b),
    );
  const go = (to: Target) => {
    setSearch("");
    if (level !== "debug") set({ level: "" });
    setTarget({ ...to });
  };
  const source = { id: props.id, attempt: props.attempt, streams };
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
        {props.devices > 1 && (
          <label title="One log of all chosen devices, by time">
            <input type="checkbox" checked={merged} onChange={() => set({ merged: merged ? "" : "yes" })} /> Merged
          </label>
        )}
        <span class="row streams" role="group" aria-label="Streams">
          {STREAMS.map((name) => (
            <label key={name}>
              <input type="checkbox" checked={on.includes(name)} onChange={() => toggleStream(name)} /> {name}
            </label>
          ))}
          <label title="Lines that say what each device got of every batch">
            <input type="checkbox" checked={on.includes(SHARD)} onChange={() => toggleStream(SHARD)} /> Shard lines
          </label>
        </span>
        <label>
          Level{" "}
          <select
            value={level}
            onChange={(event) => set({ level: event.currentTarget.value === "debug" ? "" : event.currentTarget.value })}
          >
            {LEVELS.map((name) => (
              <option key={name} value={name}>
                {name === "debug" ? "all" : name === "error" ? "errors" : `${name} and above`}
              </option>
            ))}
          </select>
        </label>
        <label>
          Search{" "}
          <input
            id="log-search"
            type="search"
            size={18}
            value={search}
            placeholder="the whole log"
            maxLength={200}
            onInput={(event) => setSearch(event.currentTarget.value)}
          />
        </label>
        {!merged && (
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
            <button type="button" onClick={() => go({ to: "line", number: 1 })}>
              Start
            </button>
            <button type="button" onClick={() => go({ to: "end" })}>
              End
            </button>
          </form>
        )}
        <button class="plain" onClick={() => void tried(() => save(source, chosen, props.devices, search.trim()))}>
          Download
        </button>
      </div>
      <div class={merged ? "logs one" : "logs"}>
        {merged ? (
          <MergedLog
            key={streams}
            source={{ ...source, device: null }}
            devices={chosen}
            wanted={wanted}
            feed={props.feed}
            running={props.running}
          />
        ) : (
          chosen.map((device) => (
            <LogPane
              key={`${device} ${streams}`}
              source={{ ...source, device }}
              wanted={wanted}
              target={target}
              feed={props.feed}
              running={props.running}
              show={(seq) => go({ to: "line", number: seq, device })}
            />
          ))
        )}
      </div>
      {chosen.length === 0 && <p class="muted">Choose a device to see its log.</p>}
    </>
  );
}

const levelIn = (text: string | null): Level => LEVELS.find((level) => level === text) ?? "debug";

/** The log as text, whole: of one device where one is chosen, else of all, with the device in front of each line. */
async function save(
  source: { id: string; attempt: number; streams: string },
  chosen: readonly number[],
  devices: number,
  search: string,
): Promise<void> {
  const query = new URLSearchParams({ attempt: String(source.attempt), stream: source.streams, limit: "10000" });
  if (chosen.length === 1 && devices > 1) query.set("device", String(chosen[0]));
  if (search) query.set("search", search);
  const parts: string[] = [];
  let next: string | undefined = `/v1/jobs/${source.id}/logs?${query}`;
  for (let page = 0; next && page < PAGES; page += 1) {
    const answer: Response = await fetch(next, { headers: { Accept: "text/plain" }, credentials: "same-origin" });
    if (!answer.ok) throw new Error(`the log cannot be read: status ${answer.status}`);
    parts.push(await answer.text());
    next = /<([^>]+)>; rel="next"/.exec(answer.headers.get("Link") ?? "")?.[1];
  }
  download(`${source.id.slice(-8)}-${source.attempt}.log`, shownText(parts.join("")));
}
