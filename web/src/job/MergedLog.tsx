// The logs of several devices as one, by time: the newest lines as they come, or those that fit a filter.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import type { LogLine } from "../api";
import { plural } from "../format";
import { throttled } from "../throttle";
import { LogLineView } from "./LogPane";
import { read, type Source, shows } from "./lines";
import { isFilter, useMatches, type Wanted } from "./matches";
import type { Feed } from "./watch";

const HELD = 1000;
const AT_END = 30;

export function MergedLog(props: {
  source: Source;
  devices: readonly number[];
  wanted: Wanted;
  feed: Feed;
  running: boolean;
}) {
  const { source, feed, wanted } = props;
  const [lines, setLines] = useState<LogLine[]>([]);
  const list = useRef<HTMLOListElement>(null);
  const follows = useRef(true);
  const filtered = isFilter(wanted);
  const found = useMatches(source, wanted, feed);
  useEffect(() => {
    let over = false;
    const newest = throttled(async () => {
      const page = await read(source, { tail: HELD });
      if (!over) setLines(merged([], page.lines));
    });
    void newest();
    const stops = [
      feed.onResync(() => void newest()),
      feed.onLog((event) => {
        if (event.attempt !== source.attempt) return;
        const fresh = event.lines.filter((line) => shows(source, line));
        if (fresh.length) setLines((before) => merged(before, fresh));
      }),
    ];
    return () => {
      over = true;
      for (const stop of stops) stop();
    };
  }, [source.id, source.attempt, source.streams]);
  const shown = (filtered ? found.lines : lines).filter((line) => props.devices.includes(line.device));
  useLayoutEffect(() => {
    const node = list.current;
    if (node && follows.current && !filtered) node.scrollTop = node.scrollHeight;
  }, [lines, filtered]);
  const scrolled = () => {
    const node = list.current;
    if (!node) return; // the event came when the list was gone
    follows.current = node.scrollTop + node.clientHeight > node.scrollHeight - AT_END;
  };
  const words = filtered
    ? `${plural(shown.length, "line")}${found.more ? " so far" : ""}${found.busy ? ", searching …" : ""}`
    : `the newest ${plural(shown.length, "line")}${props.running ? ", live" : ""}`;
  return (
    <section class="log" aria-label="Log of the chosen devices together">
      <header>
        devices {props.devices.join(", ")}
        <span class="muted" role="status">
          {words}
        </span>
        {filtered && found.more && !found.busy && (
          <button class="plain" onClick={found.goOn}>
            search on
          </button>
        )}
      </header>
      <ol ref={list} class="mono" tabIndex={0} aria-label="lines of the chosen devices" onScroll={scrolled}>
        {shown.map((line) => (
          <LogLineView
            key={`${line.device} ${line.seq}`}
            line={line}
            wanted={wanted.search.toLowerCase()}
            marked={false}
            show={undefined}
            device
          />
        ))}
      </ol>
    </section>
  );
}

/** Lines with some more, by time; those that are there already stay once. */
function merged(before: readonly LogLine[], fresh: readonly LogLine[]): LogLine[] {
  const known = new Set(before.map((line) => `${line.device} ${line.seq}`));
  const all = [...before, ...fresh.filter((line) => !known.has(`${line.device} ${line.seq}`))];
  return all
    .sort((a, b) => (a.at ?? "").localeCompare(b.at ?? "") || a.device - b.device || a.seq - b.seq)
    .slice(-HELD);
}
