// What people look at first: how it went, and how fast.

import { ENDED, type JobStatus, type Report } from "../api";
import { useClock } from "../clock";
import { between, bytes, count, duration, flopRate, number, percent } from "../format";

const METRICS = 4;

interface Tile {
  title: string;
  value: string;
  note?: string;
}

export function Summary(props: { job: JobStatus; report: Report | null }) {
  const { job, report } = props;
  const now = useClock();
  const tiles = tilesOf(job, report, now);
  if (!tiles.length && !report?.verdict) return null;
  return (
    <section class="panel summary" aria-label="Summary">
      {report?.verdict && (
        <p class="verdict" dir="auto">
          {report.verdict}
        </p>
      )}
      <dl class="tiles">
        {tiles.map((tile) => (
          <div key={tile.title}>
            <dt dir="auto">{tile.title}</dt>
            <dd>
              {tile.value} {tile.note && <small>{tile.note}</small>}
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function tilesOf(job: JobStatus, report: Report | null, now: number): Tile[] {
  const { progress } = job;
  const running = !ENDED.has(job.state);
  const loss = job.result?.loss ?? progress?.loss ?? null;
  const rate = report?.rows_per_second ?? progress?.rows_per_second ?? null;
  const peaks = (report?.per_device ?? []).flatMap((one) => one.memory_peak_bytes ?? []);
  const tiles: (Tile | null)[] = [
    loss == null ? null : { title: "loss", value: number(loss) },
    ...Object.entries(job.result?.metrics ?? {})
      .slice(0, METRICS)
      .map(([title, value]) => ({ title, value: number(value) })),
    rate == null ? null : { title: "throughput", value: `${count(Math.round(rate))} rows/s` },
    report?.tokens_per_second == null
      ? null
      : { title: "tokens", value: `${count(Math.round(report.tokens_per_second))}/s` },
    report?.flop_per_second == null
      ? null
      : {
          title: "compute",
          value: flopRate(report.flop_per_second),
          ...(report.mfu == null ? {} : { note: `${percent(report.mfu)} MFU` }),
        },
    peaks.length ? { title: "peak memory", value: bytes(Math.max(...peaks)), note: "of the fullest device" } : null,
    job.started_at
      ? {
          title: running ? "running for" : "took",
          value: duration(between(job.started_at, job.finished_at, now)),
          ...(running && progress?.eta_seconds ? { note: `about ${duration(progress.eta_seconds)} left` } : {}),
        }
      : null,
  ];
  return tiles.filter((tile): tile is Tile => tile !== null);
}
