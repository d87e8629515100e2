// Jobs whose end somebody wants to be told of: the browser says it, also while they look at another page or window.

import { signal } from "@preact/signals";

import { ENDED, get, type JobStatus, me, Problem } from "../api";
import { between, duration } from "../format";
import { go } from "../router";
import { say } from "../toast";

const KEPT = "shardyard.watched";
const MOST = 50;
const LOOK_MS = 4000;

export const watched = signal<readonly string[]>(kept());

export const isWatched = (id: string): boolean => watched.value.includes(id);

/** Begin or end to watch a job. The browser asks whether it may tell. */
export async function toggleWatch(id: string): Promise<void> {
  if (isWatched(id)) return keep(watched.value.filter((one) => one !== id));
  keep([...watched.value.filter((one) => one !== id), id].slice(-MOST));
  if (!("Notification" in window) || Notification.permission === "denied") {
    say("This browser tells nothing of this page; the end is told here, while the page is open", "good");
  } else if (Notification.permission === "default") await Notification.requestPermission();
}

/** Look at the watched jobs every so often, in one of all open windows. Call what is returned to stop. */
export function watchForEnds(): () => void {
  const stop = new AbortController();
  const shared = (event: StorageEvent) => {
    if (event.key === KEPT) watched.value = kept();
  };
  window.addEventListener("storage", shared, { signal: stop.signal });
  const look = () => {
    if (!me.value || !watched.value.length) return;
    if (!("locks" in navigator)) return void lookAtAll();
    void navigator.locks.request("shardyard watch", { ifAvailable: true }, (lock) => lock && lookAtAll());
  };
  const timer = setInterval(look, LOOK_MS);
  return () => {
    clearInterval(timer);
    stop.abort();
  };
}

async function lookAtAll(): Promise<void> {
  for (const id of watched.value) {
    try {
      const job = await get<JobStatus>(`/v1/jobs/${id}`);
      if (!ENDED.has(job.state)) continue;
      keep(watched.value.filter((one) => one !== id));
      tell(job);
    } catch (error) {
      if (!(error instanceof Problem) || error.status !== 404) return; // the next look asks again
      keep(watched.value.filter((one) => one !== id));
    }
  }
}

function tell(job: JobStatus): void {
  const took = duration(between(job.started_at, job.finished_at, 0));
  const title = `${job.name || job.id} ${job.state}`;
  const body = job.state === "failed" ? job.reason.message : job.started_at ? `after ${took}` : "";
  say(body ? `${title}: ${body}` : title, job.state === "failed" ? "bad" : "good");
  if (!("Notification" in window) || Notification.permission !== "granted") return;
  const told = new Notification(title, { body: body.slice(0, 200), tag: job.id });
  told.onclick = () => {
    window.focus();
    go(`/jobs/${job.id}`);
    told.close();
  };
}

function kept(): string[] {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(KEPT) ?? "[]");
    return Array.isArray(found) ? found.filter((one) => typeof one === "string").slice(-MOST) : [];
  } catch {
    return [];
  }
}

function keep(ids: readonly string[]): void {
  watched.value = ids;
  try {
    localStorage.setItem(KEPT, JSON.stringify(ids));
  } catch {
    // A browser that keeps nothing watches until the page is left.
  }
}
