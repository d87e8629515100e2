// The lines of a device's whole log that have some text. The service looks at a part of the log in each answer.

import { useEffect, useRef, useState } from "preact/hooks";

import type { LogLine } from "../api";
import { read, type Source, shows } from "./lines";
import type { Feed } from "./watch";

/** After the last key. */
const REST_MS = 300;
/** Matches that are shown before somebody asks for more. */
const ENOUGH = 300;

export interface Matches {
  lines: LogLine[];
  busy: boolean;
  more: boolean;
  goOn: () => void;
}

export function useMatches(source: Source, search: string, feed: Feed): Matches {
  const [lines, setLines] = useState<LogLine[]>([]);
  const [busy, setBusy] = useState(false);
  const [more, setMore] = useState(false);
  const run = useRef(0);
  const cursor = useRef("");

  const look = async (mine: number, enough: number) => {
    setBusy(true);
    let count = 0;
    let finished = false;
    while (run.current === mine && count < enough && !finished) {
      const page = await read(source, {
        search,
        limit: ENOUGH,
        ...(cursor.current && { after: cursor.current }),
      }).catch(() => null);
      if (run.current !== mine) return;
      finished = page == null || page.ended || (!page.lines.length && page.next === cursor.current);
      if (page?.lines.length) setLines((before) => [...before, ...page.lines]);
      count += page?.lines.length ?? 0;
      cursor.current = page?.next ?? cursor.current;
    }
    setBusy(false);
    setMore(!finished);
  };
  useEffect(() => {
    const mine = ++run.current;
    setLines([]);
    setMore(false);
    setBusy(search !== "");
    cursor.current = "";
    if (!search) return;
    const timer = setTimeout(() => void look(mine, ENOUGH), REST_MS);
    return () => {
      run.current += 1;
      clearTimeout(timer);
    };
  }, [search, source.id, source.attempt, source.device, source.streams]);
  useEffect(() => {
    if (!search || busy || more) return;
    return feed.onLog((event) => {
      const wanted = search.toLowerCase();
      const fresh =
        event.device === source.device
          ? event.lines.filter((line) => shows(source, line) && line.text.toLowerCase().includes(wanted))
          : [];
      if (fresh.length)
        setLines((before) => [...before, ...fresh.filter((line) => line.seq > (before.at(-1)?.seq ?? 0))]);
    });
  }, [search, busy, more, source.device]);

  return { lines, busy, more, goOn: () => void look(run.current, ENOUGH) };
}
