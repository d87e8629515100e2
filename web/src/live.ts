// Streams of server-sent events. They are read with fetch rather than EventSource: its answers say why there is no
// stream (signed out, gone, over), and a connection that has fallen silent is noticed.

import { type Events, me, read as parsed } from "./api";
import { noteLost } from "./connection";

/** The service sends something every 15 s. */
const SILENT_MS = 40_000;
const AGAIN_MS = [500, 1000, 2000, 4000, 8000];
/** A page that nobody looks at gives its connection back: browsers have six for all tabs together. */
const LINGER_MS = 15_000;
/** So many pages of a browser may hold a stream; others look every so often. */
const STREAMS = 4;
const LOOK_MS = 4000;

export type Handlers = { [Name in keyof Events]?: (data: Events[Name]) => void };

/** Follow a stream: from where it was cut when it is cut, not at all while the page is hidden. `handlers` take the JSON
 * of each event; `end` is also called where there is nothing to follow any more, and `resync`, every so often, where
 * other pages hold all the streams. Call what is returned to leave. */
export function follow(path: string, handlers: Handlers, tell?: (live: boolean) => void): () => void {
  let lastId = "";
  let over = false;
  let failures = 0;
  let tried = false;
  let reading: AbortController | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;

  const leave = () => {
    over = true;
    clearTimeout(timer);
    reading?.abort();
    document.removeEventListener("visibilitychange", looked);
    window.removeEventListener("online", hurry);
  };
  const take = (name: string, id: string, data: string) => {
    if (over) return;
    if (id) lastId = id;
    const handler = handlers[name as keyof Events] as ((data: unknown) => void) | undefined;
    handler?.(parsed(data || "null"));
    if (name === "end") leave();
  };
  const read = async () => {
    if (over || reading || document.hidden) return;
    const mine = (reading = new AbortController());
    let again: number | undefined;
    const before = tried;
    tried = true;
    try {
      if (!(await granted(mine))) {
        tell?.(true);
        handlers.resync?.(null);
        again = LOOK_MS;
        return;
      }
      const headers: HeadersInit = { Accept: "text/event-stream", ...(lastId && { "Last-Event-ID": lastId }) };
      const answer = await fetch(path, { headers, signal: mine.signal, cache: "no-store" });
      if (answer.status === 401) me.value = null;
      if ([204, 401, 403, 404].includes(answer.status)) {
        if (!over) handlers.end?.(answer.status === 404 ? { state: "deleted" } : null);
        return leave();
      }
      if (!answer.ok || !answer.body) throw new Error(`status ${answer.status}`);
      tell?.(true);
      failures = 0;
      // A stream that was cut before its first event begins anew: what happened meanwhile is in none of its events.
      if (before && !lastId) handlers.resync?.(null);
      await events(answer.body, mine, take);
    } catch (error) {
      // It was cut, or left on purpose; either way it goes on below, or it does not.
      if (error instanceof TypeError && !mine.signal.aborted && !over) noteLost();
    } finally {
      mine.abort();
      if (reading === mine) reading = null;
      if (!over && !document.hidden) {
        if (again == null) tell?.(false);
        clearTimeout(timer);
        timer = setTimeout(() => void read(), again ?? AGAIN_MS[Math.min(failures++, AGAIN_MS.length - 1)]);
      }
    }
  };
  const hurry = () => {
    clearTimeout(timer);
    void read();
  };
  const looked = () => {
    clearTimeout(timer);
    if (!document.hidden) void read();
    else timer = setTimeout(() => reading?.abort(), LINGER_MS);
  };
  document.addEventListener("visibilitychange", looked);
  window.addEventListener("online", hurry);
  void read();
  return leave;
}

/** Whether this page may hold a stream, which it then does until `held` is aborted. Only browsers that trust the
 * connection (TLS, or this machine) can tell; elsewhere every page may. */
async function granted(held: AbortController): Promise<boolean> {
  if (!("locks" in navigator)) return true;
  for (let n = 0; n < STREAMS; n += 1) {
    const got = await new Promise<boolean>((answer) => {
      void navigator.locks.request(`shardyard stream ${n}`, { ifAvailable: true }, (lock) => {
        answer(lock !== null);
        return (
          lock &&
          new Promise<void>((free) =>
            held.signal.aborted ? free() : held.signal.addEventListener("abort", () => free()),
          )
        );
      });
    });
    if (got) return true;
  }
  return false;
}

async function events(
  body: ReadableStream<Uint8Array>,
  abort: AbortController,
  take: (name: string, id: string, data: string) => void,
): Promise<void> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  for (;;) {
    const silence = setTimeout(() => abort.abort(), SILENT_MS);
    const { done, value } = await reader.read().finally(() => clearTimeout(silence));
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop()!;
    for (const block of blocks) one(block, take);
  }
}

function one(block: string, take: (name: string, id: string, data: string) => void): void {
  let name = "";
  let id = "";
  const data: string[] = [];
  for (const line of block.split(/\r?\n/)) {
    const colon = line.indexOf(":");
    const field = line.slice(0, colon);
    const value = line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") name = value;
    else if (field === "id") id = value;
    else if (field === "data") data.push(value);
  }
  if (name) take(name, id, data.join("\n"));
}
