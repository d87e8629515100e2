import { ENDED, type JobStatus, may, post } from "../api";
import { useClock } from "../clock";
import { asked, between, clock, count, duration, leader, number } from "../format";
import { ProgressBar, StateMark, WhyText } from "../parts/State";
import { go, Link } from "../router";
import { attempt } from "../toast";
import { remove, resubmit } from "./actions";

export function Head(props: { job: JobStatus; live: boolean }) {
  const { job } = props;
  const now = useClock();
  const running = !ENDED.has(job.state);
  const where = job.placement[0];
  return (
    <div class="job-head">
      <div class="row">
        <h1>
          <bdi>{job.name}</bdi>
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
        {job.result?.loss != null && <span>loss {number(job.result.loss)}</span>}
        {Object.entries(job.result?.metrics ?? {})
          .slice(0, 8)
          .map(([name, value]) => (
            <span key={name}>
              {name} {number(value)}
            </span>
          ))}
        {job.retry_at && running && <span>tries again at {clock(job.retry_at)}</span>}
        {job.checkpoint && <span>checkpoint at step {count(job.checkpoint.step)}</span>}
        {job.archived && <span class="label">archived</span>}
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
  const cancel = () => attempt(() => post(`/v1/jobs/${job.id}/cancel`));
  return (
    <>
      <Link to={`/compare?a=${job.id}`} class="button">
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
      {may("submit") && running && (
        <button class="risky" disabled={job.cancel_requested} onClick={cancel}>
          Cancel
        </button>
      )}
      {may("submit") && <button onClick={() => resubmit(job.id)}>Submit again</button>}
      {may("submit") && !running && (
        <button class="risky" onClick={() => remove(job, () => go("/"))}>
          Delete
        </button>
      )}
    </>
  );
}

function shortened(devices: string[]): string {
  return devices.length <= 8 ? devices.join(", ") : `${devices[0]} … ${devices.at(-1)}`;
}
