import { ENDED, getAsItIs, type JobStatus, may } from "../api";
import { useClock } from "../clock";
import { asked, between, count, duration, leader } from "../format";
import { isWatched, toggleWatch } from "../frame/watched";
import { type Action, Menu } from "../parts/Menu";
import { ProgressBar, StateMark, WhyText } from "../parts/State";
import { go, Link } from "../router";
import type { Json } from "../submit/changes";
import { asCommand, asCurl, asPython } from "../submit/recipes";
import { attempt } from "../toast";
import { cancel, copy, editJob, remove, resubmit, resume, suspend } from "./actions";

export function Head(props: { job: JobStatus; live: boolean }) {
  const { job } = props;
  const now = useClock();
  const running = !ENDED.has(job.state);
  const where = job.placement[0];
  return (
    <div class="job-head">
      <div class="row">
        <h1>
          <bdi>{job.name || job.id}</bdi>
        </h1>
        <span aria-live="polite">
          <StateMark state={job.state} cancelling={job.cancel_requested && running} />
        </span>
        <WhyText job={job} />
        <span class="grow" />
        <span class="muted" role="status">
          {props.live ? "" : "not live: connecting again …"}
        </span>
        <Actions job={job} running={running} />
      </div>
      <div class="row muted">
        <span>
          {job.strategy} on {asked(job)}{" "}
          {where
            ? job.nodes > 1
              ? `(${leader(job.placement)})`
              : `(${shortened(where.devices)} of ${where.node})`
            : `in pool ${job.pool}`}
        </span>
        {job.queue_position != null && <span>place {job.queue_position} in the queue</span>}
        {job.attempt > 1 && <span>attempt {job.attempt}</span>}
        {job.started_at && (
          <span>
            {running ? "running for" : "took"} {duration(between(job.started_at, job.finished_at, now))}
          </span>
        )}
        {job.retry_at && running && <span>tries again soon</span>}
        {job.checkpoint && <span>checkpoint at step {count(job.checkpoint.step)}</span>}
        {job.archived && <span class="label">archived</span>}
        {Object.entries(job.labels).map(([name, value]) => (
          <Link key={name} to={`/?label=${encodeURIComponent(`${name}=${value}`)}`} class="label">
            <bdi>
              {name}={value}
            </bdi>
          </Link>
        ))}
      </div>
      {running && job.state !== "queued" && (
        <div class="head-progress">
          <ProgressBar progress={job.progress} running />
        </div>
      )}
    </div>
  );
}

function Actions(props: { job: JobStatus; running: boolean }) {
  const { job, running } = props;
  const specAs = (what: string, written: (spec: Json) => string) => () =>
    attempt(async () => {
      const found = await getAsItIs<{ spec: Json }>(`/v1/jobs/${job.id}`);
      await copy(written(found.spec), what);
    });
  const copies: Action[] = [
    { title: "curl", act: specAs("A request by curl", (spec) => asCurl(spec, window.location.origin)) },
    { title: "Command line", act: specAs("A command", asCommand) },
    { title: "Python", act: specAs("A Python program", asPython) },
    { title: "Spec as JSON", act: specAs("The spec", (spec) => JSON.stringify(spec, null, 2)) },
    { title: "Id", act: () => void copy(job.id, "The id") },
  ];
  const more: Action[] = [{ title: "Submit again", act: () => void resubmit(job.id) }];
  if (running) {
    const suspended = job.suspended;
    more.push(
      suspended
        ? { title: "Resume", act: () => void resume(job.id) }
        : { title: "Suspend", act: () => void suspend(job.id) },
    );
  } else more.push({ title: "Delete …", risky: true, act: () => remove(job, () => go("/")) });
  return (
    <>
      {running && (
        <button
          aria-pressed={isWatched(job.id)}
          title="Have this browser tell you when it ends"
          onClick={() => void toggleWatch(job.id)}
        >
          {isWatched(job.id) ? "Tells you its end" : "Tell me when it ends"}
        </button>
      )}
      <Link to={`/compare?jobs=${job.id}`} class="button">
        Compare
      </Link>
      {job.attempt > 0 && (
        <a
          class="button"
          href={`/v1/jobs/${job.id}/splits`}
          target="_blank"
          rel="noopener"
          title="One page with everything in it, to keep or to send"
        >
          As a file
        </a>
      )}
      <Menu class="" label="Copy as" actions={copies}>
        Copy as ▾
      </Menu>
      {may("submit") && running && (
        <button class="risky" disabled={job.cancel_requested} onClick={() => void cancel(job.id)}>
          Cancel
        </button>
      )}
      {may("submit") && <button onClick={() => void editJob(job.id)}>Edit and submit</button>}
      {may("submit") && (
        <Menu label="More actions" actions={more}>
          ⋯
        </Menu>
      )}
    </>
  );
}

function shortened(devices: string[]): string {
  return devices.length <= 8 ? devices.join(", ") : `${devices[0]} … ${devices.at(-1)}`;
}
