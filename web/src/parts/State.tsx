import type { JobSummary, Progress } from "../api";
import { duration, number, percent, plural } from "../format";

export function StateMark(props: { state: string; cancelling?: boolean }) {
  return <span class={`state ${props.state}`}>{props.cancelling ? "cancelling" : props.state}</span>;
}

/** The reason, where it says more than the state does. */
export function WhyText(props: { job: JobSummary }) {
  const { code, message } = props.job.reason;
  if (code === "running" || code === "completed" || (code === "starting" && !message)) return null;
  return (
    <span class="muted" dir="auto">
      {message || code.replaceAll("_", " ")}
    </span>
  );
}

export function ProgressBar(props: { progress: Progress | null; running: boolean }) {
  const { progress } = props;
  if (!progress) return null;
  const fraction = progress.fraction ?? null;
  const words = progressWords(progress, props.running);
  return (
    <div>
      {fraction != null && <progress max={1} value={fraction} aria-label={`progress: ${percent(fraction)}`} />}
      <span class="muted">{words}</span>
    </div>
  );
}

export function progressWords(progress: Progress, running: boolean): string {
  const parts: string[] = [];
  const unit = progress.unit ?? "step";
  if (progress.step != null) {
    parts.push(
      progress.steps != null
        ? `${unit} ${number(progress.step)} of ${number(progress.steps)}`
        : plural(progress.step, unit),
    );
  }
  if (progress.epoch != null && progress.epochs != null) parts.push(`epoch ${progress.epoch} of ${progress.epochs}`);
  if (progress.rows_per_second) parts.push(`${number(Math.round(progress.rows_per_second))} rows/s`);
  if (running && progress.eta_seconds) parts.push(`about ${duration(progress.eta_seconds)} left`);
  return parts.join(" · ");
}
