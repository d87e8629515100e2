// The end of each device's log, side by side, as it grows; and a search and a jump to a step.

import { useEffect, useRef, useState } from "preact/hooks";

import { type LogLine, follow, get } from "../api";
import { clock } from "../format";

/** Lines that are kept of each device: older ones are read from the API. */
const KEPT = 1000;
const TAIL = 200;
const SHOWN_DEVICES = 4;

export function Logs(props: { id: string; attempt: number; devices: number; running: boolean }) {
  const [chosen, setChosen] = useState<number[]>(Array.from({ length: Math.min(props.devices, SHOWN_DEVICES) }, (_, n) => n));
  const [search, setSearch] = useState("");
  const [step, setStep] = useState("");
  const [lines, setLines] = useState<Map<number, LogLine[]>>(new Map());
  const steps = useRef(step);
  steps.current = step;

  const read = async () => {
    const range = step ? `&from_step=${step}&limit=${TAIL}` : `&tail=${TAIL}`;
    const found = await Promise.all(
      chosen.map((device) => get<{ lines: LogLine[] }>(`/v1/jobs/${props.id}/logs?device=${device}${range}`).then((page) => [device, page.lines] as const, () => [device, []] as const)),
    );
    setLines(new Map(found.map(([device, page]) => [device, [...page]])));
  };
  useEffect(() => {
    if (props.attempt > 0) void read();
  }, [props.id, props.attempt, chosen.join(), step]);
  useEffect(() => {
    if (!props.running || step) return;
    const add = (event: { device: number; lines: LogLine[] }) =>
      setLines((before) => {
        const known = before.get(event.device);
        if (!known) return before;
        const last = known.at(-1)?.seq ?? 0;
        const fresh = event.lines.filter((line) => line.seq > last);
        return fresh.length ? new Map(before).set(event.device, [...known, ...fresh].slice(-KEPT)) : before;
      });
    return follow(`/v1/jobs/${props.id}/events?logs=${chosen.join()}`, { log: add, resync: () => void read() });
  }, [props.id, props.running, props.attempt, chosen.join(), step]);

  const toggle = (device: number) =>
    setChosen((before) => (before.includes(device) ? before.filter((one) => one !== device) : [...before, device].sort((a, b) => a - b).slice(-8)));
  return (
    <>
      <div class="row">
        <h2>Logs</h2>
        {props.devices > 1 && (
          <span class="switch many" role="group" aria-label="Devices whose logs are shown">
            {Array.from({ length: Math.min(props.devices, 64) }, (_, device) => (
              <button key={device} aria-pressed={chosen.includes(device)} onClick={() => toggle(device)}>{device}</button>
            ))}
          </span>
        )}
        <label>Search <input type="search" size={18} value={search} onInput={(event) => setSearch(event.currentTarget.value)} /></label>
        <label>From step <input type="number" min={0} value={step} class="short" onChange={(event) => setStep(event.currentTarget.value)} /></label>
        <a href={`/v1/jobs/${props.id}/logs?limit=10000`} target="_blank" rel="noopener">as JSON</a>
      </div>
      <div class="logs">
        {chosen.map((device) => <Log key={device} device={device} lines={lines.get(device) ?? []} search={search} follow={!step && !search} />)}
      </div>
    </>
  );
}

function Log(props: { device: number; lines: LogLine[]; search: string; follow: boolean }) {
  const list = useRef<HTMLOListElement>(null);
  const atEnd = useRef(true);
  const wanted = props.search.toLowerCase();
  const shown = wanted ? props.lines.filter((line) => line.text.toLowerCase().includes(wanted)) : props.lines;
  useEffect(() => {
    const node = list.current;
    if (node && props.follow && atEnd.current) node.scrollTop = node.scrollHeight;
  }, [shown.length, shown.at(-1)?.seq, props.follow]);
  return (
    <div class="log">
      <header>device {props.device} <span class="muted">{wanted ? `${shown.length} of ${props.lines.length} lines` : props.lines.length ? `to line ${props.lines.at(-1)!.seq}` : "nothing yet"}</span></header>
      <ol
        ref={list}
        class="mono"
        tabIndex={0}
        aria-label={`log of device ${props.device}`}
        onScroll={(event) => {
          const node = event.currentTarget;
          atEnd.current = node.scrollTop + node.clientHeight > node.scrollHeight - 30;
        }}
      >
        {shown.map((line) => (
          <li key={line.seq} class={line.stream} title={`line ${line.seq}, ${line.stream}, rank ${line.rank}${line.step == null ? "" : `, step ${line.step}`}`}>
            <span class="at">{clock(line.at).slice(-8)}</span><bdi>{wanted ? marked(line.text, wanted) : line.text}</bdi>
          </li>
        ))}
      </ol>
    </div>
  );
}

function marked(text: string, wanted: string) {
  const at = text.toLowerCase().indexOf(wanted);
  return at < 0 ? text : <>{text.slice(0, at)}<mark>{text.slice(at, at + wanted.length)}</mark>{text.slice(at + wanted.length)}</>;
}
