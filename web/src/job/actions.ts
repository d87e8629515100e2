// What can be done to a job, from wherever it is shown.

import { type CancelledJobs, call, getAsItIs, type JobStatus, type JobSummary, Problem, post } from "../api";
import { plural } from "../format";
import { go } from "../router";
import { DRAFT } from "../submit/draft";
import { attempt, say } from "../toast";

export const again = (id: string) =>
  post<JobStatus>(`/v1/jobs/${id}/resubmit`, undefined, { "Idempotency-Key": crypto.randomUUID() });

export const resubmit = (id: string) => attempt(async () => go(`/jobs/${(await again(id)).id}`));

export const cancel = (id: string) => attempt(() => post(`/v1/jobs/${id}/cancel`));
export const suspend = (id: string) => attempt(() => post(`/v1/jobs/${id}/suspend`));
export const resume = (id: string) => attempt(() => post(`/v1/jobs/${id}/resume`));

export const remove = (job: Pick<JobSummary, "id" | "name">, after: () => void) => {
  if (!window.confirm(`Delete ${job.name || job.id} with its logs, report and files?`)) return;
  void attempt(async () => {
    await call("DELETE", `/v1/jobs/${job.id}`);
    after();
  });
};

/** Open the form with the spec of a job in it, and with some of its fields set. */
export const edit = (spec: unknown) => {
  sessionStorage.setItem(DRAFT, JSON.stringify(spec, null, 2));
  go("/submit");
};

export const editJob = (id: string) => attempt(async () => edit((await getAsItIs<JobStatus>(`/v1/jobs/${id}`)).spec));

export const copy = (text: string, what: string) =>
  attempt(async () => {
    await navigator.clipboard.writeText(text);
    say(`${what} is on the clipboard`, "good");
  });

const TOGETHER = 4;

/** Do the same to many jobs, a few at a time, and say what came of it. Returns the ids of those that it was done to. */
export async function toAll(
  ids: readonly string[],
  done: string,
  act: (id: string) => Promise<unknown>,
): Promise<Set<string>> {
  const left = [...ids];
  const well = new Set<string>();
  const wrong = new Map<string, number>();
  const work = async () => {
    for (let id = left.shift(); id; id = left.shift()) {
      try {
        await act(id);
        well.add(id);
      } catch (error) {
        const words = error instanceof Problem ? error.message.replace(id, "…") : String(error);
        wrong.set(words, (wrong.get(words) ?? 0) + 1);
      }
    }
  };
  await Promise.all(Array.from({ length: TOGETHER }, work));
  const problems = [...wrong].slice(0, 3).map(([words, count]) => `${plural(count, "job")}: ${words}`);
  say([`${plural(well.size, "job")} ${done}`, ...problems].join(". "), problems.length ? "bad" : "good");
  return well;
}

export const cancelMatching = (filter: Record<string, string>) =>
  attempt(async () => {
    const body = Object.keys(filter).length ? filter : { all: true };
    const done = await post<CancelledJobs>("/v1/jobs/cancel", body);
    const count = plural(done.cancelled + done.cancelling, "job");
    say(`${count} cancelled${done.complete ? "" : "; there are more: ask again"}`, "good");
  });
