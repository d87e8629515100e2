// The lines of a device's whole log that have some text. The service looks at a part of the log in each answer.

import { useEffect, useRef, useState } from "preact/hooks";

import type { LogLine } from "../api";
import { isAtLeast, type Level } from "./levels";
import { read, type Source, shows } from "./lines";
import type { Feed } from "./watch";

/** After the last key. */
const REST_MS = 300;
/** Matches that are shown before somebody asks for more. */
const ENOUGH = 300;
/** Lines that are read at once where the page itself looks through them. */
const PAGE_LINES = 5000;

export interface Matches {
  lines: LogLine[];
  busy: boolean;
  more: boolean;
  goOn: () => void;
}

/** What lines are looked for: those with a text, and of a level at least. */
export interface Wanted {
  search: string;
  level: Level;
}

export const isFilter = (wanted: Wanted): boolean => wanted.search !== "" || wanted.level !== "debug";

function fits(line: LogLine, wanted: Wanted): boolean {
  return line.text.toLowerCase().includes(wanted.search.toLowerCase()) && isAtLeast(line.text, wanted.level);
}

export function useMatches(source: Source, wanted: Wanted, feed: Feed): Matches {
  const { search, level } = wanted;
  const filtered = isFilter(wanted);
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
        ...(search && { search }),
        limit: search ? ENOUGH : PAGE_LINES,
        ...(cursor.current && { after: cursor.current }),
      }).catch(() => null);
      if (run.current !== mine) return;
      finished = page == null || page.ended || (!page.lines.length && page.next === cursor.current);
      const found = (page?.lines ?? []).filter((line) => fits(line, wanted));
      if (found.length) setLines((before) => [...before, ...found]);
      count += found.length;
      cursor.current = page?.next ?? cursor.current;
    }
    setBusy(false);
    setMore(!finished);
  };
  useEffect(() => {
    const mine = ++run.current;
    setLines([]);
    setMore(false);
    setBusy(filtered);
    cursor.current = "";
    if (!filtered) return;
    const timer = setTimeout(() => void look(mine, ENOUGH), REST_MS);
    return () => {
      run.current += 1;
      clearTimeout(timer);
    };
  }, [search, level, source.id, source.attempt, source.device, source.streams]);
  useEffect(() => {
    if (!filtered || busy || more) return;
    return feed.onLog((event) => {
      const here = source.device == null || event.device === source.device;
      const fresh = here ? event.lines.filter((line) => shows(source, line) && fits(line, wanted)) : [];
      if (fresh.length)
        setLines((before) => {
          const known = new Set(before.slice(-fresh.length - ENOUGH).map((line) => `${line.device} ${line.seq}`));
          return [...before, ...fresh.filter((line) => !known.has(`${line.device} ${line.seq}`))];
        });
    });
  }, [search, level, busy, more, source.device]);

  return { lines, busy, more, goOn: () => void look(run.current, ENOUGH) };
}
