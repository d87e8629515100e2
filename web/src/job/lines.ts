// A window on the log of one device: some of its lines, in order, however long the whole is.

import { type LogLine, type LogPage, get } from "../api";

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
}

export interface Source {
  id: string;
  attempt: number;
  device: number;
}

export function read(source: Source, query: Record<string, string | number>): Promise<LogPage> {
  const wanted = new URLSearchParams({ attempt: String(source.attempt), device: String(source.device) });
  for (const [name, value] of Object.entries(query)) wanted.set(name, String(value));
  return get<LogPage>(`/v1/jobs/${source.id}/logs?${wanted}`);
}

export async function newest(source: Source): Promise<Lines> {
  return { lines: (await read(source, { tail: PAGE })).lines, atEnd: true };
}

/** Lines around one of them. */
export async function around(source: Source, seq: number): Promise<Lines> {
  const from = Math.max(1, seq - PAGE / 2);
  return upTo(source, from, from + PAGE);
}

export async function earlier(source: Source, held: Lines): Promise<Lines> {
  const first = held.lines[0]?.seq ?? 1;
  if (first <= 1) return held;
  const found = await upTo(source, Math.max(1, first - PAGE), first);
  const lines = [...found.lines, ...held.lines];
  return { lines: lines.slice(0, HELD), atEnd: held.atEnd && lines.length <= HELD };
}

export async function later(source: Source, held: Lines): Promise<Lines> {
  const last = held.lines.at(-1)?.seq ?? 0;
  const found = await upTo(source, last + 1, last + 1 + PAGE);
  return { lines: [...held.lines, ...found.lines].slice(-HELD), atEnd: found.atEnd };
}

/** With lines that have just come; null when some in between are missing. */
export function grown(held: Lines, fresh: LogLine[]): Lines | null {
  const last = held.lines.at(-1)?.seq ?? 0;
  const lines = fresh.filter((line) => line.seq > last);
  if (!lines.length) return held;
  if (last && lines[0]!.seq > last + 1) return null;
  return { lines: [...held.lines, ...lines].slice(-FOLLOWED), atEnd: true };
}

async function upTo(source: Source, from: number, end: number): Promise<Lines> {
  const lines: LogLine[] = [];
  let next: Record<string, string | number> = { from_line: from };
  for (let page = 0; page < PAGES; page += 1) {
    const found = await read(source, { ...next, limit: end - from - lines.length });
    lines.push(...found.lines.filter((line) => line.seq < end));
    if (!found.lines.length || found.ended || !found.next) return { lines, atEnd: true };
    if (lines.length >= end - from || found.lines.at(-1)!.seq >= end - 1) break;
    next = { after: found.next };
  }
  return { lines, atEnd: false };
}
