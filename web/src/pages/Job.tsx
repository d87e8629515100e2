import { useEffect, useMemo, useState } from "preact/hooks";

import { ENDED, getAsItIs, type JobStatus, may } from "../api";
import { edit } from "../job/actions";
import { Curves } from "../job/Curves";
import { DeviceTable } from "../job/DeviceTable";
import { Facts, Failure, Notes } from "../job/Facts";
import { Files } from "../job/Files";
import { Hardware } from "../job/Hardware";
import { Head } from "../job/Head";
import { Logs } from "../job/Logs";
import { Places } from "../job/Places";
import { Profiles } from "../job/Profiles";
import { Summary } from "../job/Summary";
import { Timeline } from "../job/Timeline";
import { useJob } from "../job/watch";
import { Bars, hasTimes } from "../parts/Bars";
import { Findings } from "../parts/Findings";
import { SplitMap } from "../parts/SplitMap";
import { Weights } from "../parts/Weights";
import { Link } from "../router";
import { type Change, type Json, withChanges } from "../submit/changes";
import { attempt as attemptTo } from "../toast";

/** Devices whose logs are shown at first. */
const LOGS = 3;

export function JobPage(props: { id: string }) {
  const [chosen, setChosen] = useState<number[] | null>(null);
  const [profiled, setProfiled] = useState(0);
  const { job, attempts, report, problem, live, deleted, feed } = useJob(props.id, chosen);
  useEffect(() => {
    if (job && !chosen)
      setChosen(Array.from({ length: Math.min(job.devices * job.nodes, LOGS) }, (_, device) => device));
  }, [job]);
  useEffect(() => {
    document.title = job ? `${job.name}: ${job.state}` : "Shardyard";
  }, [job?.name, job?.state]);

  // Progress comes four times a second: what it does not concern is not drawn again.
  const running = job != null && !ENDED.has(job.state);
  const output = job && outputDevice(job);
  const spec = job?.spec as Json | undefined;
  const apply = useMemo(
    () =>
      spec && may("submit")
        ? (changes: readonly Change[]) =>
            void attemptTo(async () => {
              const found = await getAsItIs<{ spec: Json }>(`/v1/jobs/${props.id}`);
              edit(withChanges(found.spec, changes));
            })
        : undefined,
    [props.id, spec != null],
  );
  const split = useMemo(
    () =>
      report && (
        <>
          <Findings findings={report.findings} running={running} apply={apply} />
          <SplitMap report={report} outputDevice={output} />
        </>
      ),
    [report, running, output, apply],
  );
  const costs = useMemo(
    () =>
      report && (
        <>
          <Weights report={report} />
          {hasTimes(report) && (
            <section class="panel">
              <Bars report={report} />
            </section>
          )}
          {report.per_device.length > 0 && (
            <section class="panel">
              <DeviceTable report={report} outputDevice={output} />
            </section>
          )}
        </>
      ),
    [report, output],
  );
  const attempt = job?.attempt ?? 0;
  const curves = useMemo(
    () => (
      <section class="panel">
        <Curves id={props.id} attempt={attempt} feed={feed} running={running} />
      </section>
    ),
    [props.id, attempt, running],
  );
  const devices = job ? job.devices * job.nodes : 0;
  const script = job != null && isScript(job);
  const logs = useMemo(
    () =>
      attempt > 0 &&
      chosen && (
        <section class="panel below">
          <Logs
            key={attempt}
            id={props.id}
            attempt={attempt}
            devices={devices}
            chosen={chosen}
            choose={setChosen}
            feed={feed}
            running={running}
            script={script}
          />
        </section>
      ),
    [props.id, attempt, devices, chosen, running, script],
  );

  if (problem)
    return (
      <div class="notice bad" role="alert">
        <h1>No such job here</h1>
        {problem.message}. <Link to="/">All jobs</Link>
      </div>
    );
  if (!job) return <p class="muted">Loading …</p>;
  return (
    <>
      {deleted && (
        <div class="notice warning" role="alert">
          This job has been deleted; this is the last that was known of it. <Link to="/">All jobs</Link>
        </div>
      )}
      <Head job={job} live={live} />
      {job.error && <Failure key={job.attempt} job={job} />}
      {job.error && !running && logs}
      <Summary job={job} report={report} />
      <div class="columns">
        <div>
          <section class="panel" aria-label="Findings and split">
            {split ?? (
              <p class="muted">
                {job.state === "queued"
                  ? "The report begins with the first step; the job waits."
                  : running
                    ? "The report begins with the first step."
                    : "There is no report."}
              </p>
            )}
          </section>
          {costs}
        </div>
        <div>
          <Places job={job} />
          {curves}
          {attempt > 0 && <Hardware id={props.id} attempt={attempt} running={running} devices={devices} />}
          <section class="panel">
            <Timeline attempts={attempts} job={job} />
          </section>
          <section class="panel">
            <Facts job={job} />
          </section>
        </div>
      </div>
      {!(job.error && !running) && logs}
      <div class="columns below">
        <div>
          <section class="panel">
            <Files id={props.id} state={job.state} profiles={profiled} />
          </section>
        </div>
        <div>
          <Profiles job={job} onDone={() => setProfiled(profiled + 1)} />
          <section class="panel">
            <details>
              <summary>Spec</summary>
              <pre tabIndex={0}>{JSON.stringify(job.spec, null, 2)}</pre>
            </details>
            {report && <Notes notes={report.notes} />}
          </section>
        </div>
      </div>
    </>
  );
}

function isScript(job: JobStatus): boolean {
  return (job.spec as { program?: { kind?: string } }).program?.kind === "script";
}

export function outputDevice(job: JobStatus): number | null {
  const spec = job.spec as { parallelism?: { strategy?: string; output_device?: number } };
  return spec.parallelism?.strategy === "dp" && job.devices > 1 ? (spec.parallelism.output_device ?? 0) : null;
}
