// A window on the log of one device: some of its lines, in order, however long the whole is. Lines of streams that are
// not shown leave gaps in the numbers.

import { get, type LogLine, type LogPage } from "../api";

/** Lines that are held; those farther away are read again when somebody goes there. */
export const HELD = 1500;
export const PAGE = 300;
/** Lines that are held of a log that is followed at its end. */
const FOLLOWED = 500;
/** Pages that one wish may take: a page may be short where lines are long. */
const PAGES = 6;

export interface Lines {
  lines: LogLine[];
  /** Whether the last line is the newest that there is. */
  atEnd: boolean;
  /** Whether there is nothing before the first line. */
  atStart: boolean;
  /** Number of the newest line that is known, of whatever stream. */
  seen: number;
}

/** What a script and the service print. */
export const OWN_STREAMS = "stdout,stderr,service";
export const ALL_STREAMS = "all";

export interface Source {
  id: string;
  attempt: number;
  /** null: all of them, by time. */
  device: number | null;
  /** `OWN_STREAMS` or `ALL_STREAMS`. */
  streams: string;
}

export function shows(source: Source, line: LogLine): boolean {
  return source.streams === ALL_STREAMS || source.streams.split(",").includes(line.stream);
}

export function read(source: Source, query: Record<string, string | number>): Promise<LogPage> {
  const wanted = new URLSearchParams({
    attempt: String(source.attempt),
    ...(source.device == null ? {} : { device: String(source.device) }),
    stream: source.streams,
  });
  for (const [name, value] of Object.entries(query)) wanted.set(name, String(value));
  return get<LogPage>(`/v1/jobs/${source.id}/logs?${wanted}`);
}

/** The end of the log; `seen` is the number of a line that was there before it was read. */
export async function newest(source: Source, seen = 0): Promise<Lines> {
  const { lines } = await read(source, { tail: PAGE });
  return { lines, atEnd: true, atStart: lines.length === 0, seen: Math.max(seen, lines.at(-1)?.seq ?? 0) };
}

/** Lines around one of them. */
export async function around(source: Source, seq: number): Promise<Lines> {
  const [before, after] = await Promise.all([
    read(source, { tail: PAGE / 2, before_line: seq }),
    onward(source, seq, PAGE / 2),
  ]);
  return { ...after, lines: [...before.lines, ...after.lines], atStart: before.lines.length === 0 };
}

export async function earlier(source: Source, held: Lines): Promise<Lines> {
  const first = held.lines[0]?.seq ?? 1;
  if (held.atStart || first <= 1) return held;
  const found = await read(source, { tail: PAGE, before_line: first });
  const lines = [...found.lines, ...held.lines];
  return {
    ...held,
    lines: lines.slice(0, HELD),
    atEnd: held.atEnd && lines.length <= HELD,
    atStart: found.lines.length === 0,
  };
}

export async function later(source: Source, held: Lines): Promise<Lines> {
  const found = await onward(source, (held.lines.at(-1)?.seq ?? 0) + 1, PAGE);
  const lines = [...held.lines, ...found.lines];
  return {
    ...found,
    lines: lines.slice(-HELD),
    atStart: held.atStart && lines.length <= HELD,
    seen: Math.max(held.seen, found.seen),
  };
}

/** With lines of all streams that have just come; null when some in between are missing. */
export function grown(source: Source, held: Lines, came: LogLine[]): Lines | null {
  const fresh = came.filter((line) => line.seq > held.seen);
  if (!fresh.length) return held;
  if (held.seen && fresh[0]!.seq > held.seen + 1) return null;
  const lines = [...held.lines, ...fresh.filter((line) => shows(source, line))];
  return {
    lines: lines.slice(-FOLLOWED),
    atEnd: true,
    atStart: held.atStart && lines.length <= FOLLOWED,
    seen: fresh.at(-1)!.seq,
  };
}

async function onward(source: Source, from: number, count: number): Promise<Lines> {
  const lines: LogLine[] = [];
  let next: Record<string, string | number> = { from_line: from };
  let atEnd = false;
  for (let page = 0; page < PAGES && lines.length < count && !atEnd; page += 1) {
    const found = await read(source, { ...next, limit: count - lines.length });
    lines.push(...found.lines);
    atEnd = found.ended || !found.next || (!found.lines.length && found.next === next.after);
    next = { after: found.next ?? "" };
  }
  return { lines, atEnd, atStart: false, seen: lines.at(-1)?.seq ?? 0 };
}
