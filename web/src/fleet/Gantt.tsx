import { useState } from "preact/hooks";

import { get, type JobSummary, type NodeView } from "../api";
import { clock, duration } from "../format";
import { useLooking } from "../looking";
import { go } from "../router";
import { colourOf, type DeviceUseList, type Span, spansOf } from "./spans";

const HOURS = [1, 6, 24, 168] as const;
const TICKS = 6;

/** Who had which device lately: a row for each device, a bar for each attempt. */
export function Gantt(props: { nodes: readonly NodeView[]; running: ReadonlyMap<string, JobSummary> }) {
  const [hours, setHours] = useState<number>(24);
  const [found, problem] = useLooking(() => get<DeviceUseList>(`/v1/devices/use?hours=${hours}`), hours);
  const until = Date.now();
  const since = until - hours * 3_600_000;
  const uses = new Map((found?.devices ?? []).map((device) => [device.id, device.uses]));
  const nodes = props.nodes.filter((node) => node.devices.length > 0);
  return (
    <section class="panel gantt" aria-label="Who had which device">
      <div class="row">
        <h2 class="grow">Who had which device</h2>
        <div class="switch" role="group" aria-label="How far back">
          {HOURS.map((one) => (
            <button key={one} aria-pressed={hours === one} onClick={() => setHours(one)}>
              {one < 48 ? `${one} h` : `${one / 24} days`}
            </button>
          ))}
        </div>
      </div>
      {problem && <p class="muted">{problem}</p>}
      <div class="gantt-rows">
        {nodes.map((node) => [
          <h3 key={node.id}>
            <bdi>{node.id}</bdi>
          </h3>,
          ...node.devices.map((device) => {
            const job = device.job ? props.running.get(device.job) : undefined;
            const now = device.job
              ? { job: device.job, since: job?.started_at ? Date.parse(job.started_at) : null }
              : null;
            const spans = spansOf(uses.get(device.name_in_fleet) ?? [], now, since, until);
            return <Row key={`${node.id} ${device.device}`} label={device.label} spans={spans} names={props.running} />;
          }),
        ])}
        <div class="gantt-axis" aria-hidden="true">
          {Array.from({ length: TICKS }, (_, n) => (
            <span key={n}>{clock(new Date(since + ((until - since) * n) / TICKS).toISOString()).slice(0, -3)}</span>
          ))}
        </div>
      </div>
    </section>
  );
}

function Row(props: { label: string; spans: readonly Span[]; names: ReadonlyMap<string, JobSummary> }) {
  const held = props.spans.reduce((sum, span) => sum + span.to - span.from, 0);
  return (
    <>
      <span class="gantt-label">{props.label}</span>
      <div
        class="gantt-track"
        role="img"
        aria-label={`${props.label}: ${props.spans.length} attempts, in use ${Math.round(Math.min(1, held) * 100)} % of the time`}
      >
        {props.spans.map((span) => (
          <i
            key={`${span.job} ${span.begun}`}
            class={`run-${colourOf(span.job)}${span.reason && span.reason !== "completed" ? " ended-early" : ""}`}
            title={titleOf(span, props.names.get(span.job)?.name)}
            style={{
              insetInlineStart: `${(span.from * 100).toFixed(3)}%`,
              width: `${((span.to - span.from) * 100).toFixed(3)}%`,
            }}
            onClick={() => !span.job.includes(" ") && go(`/jobs/${span.job}`)}
          />
        ))}
      </div>
    </>
  );
}

function titleOf(span: Span, name: string | undefined): string {
  const job = name ?? (span.job.includes(" ") ? span.job : `job …${span.job.slice(-8)}`);
  const begun = clock(new Date(span.begun).toISOString());
  const took = duration(((span.ended ?? Date.now()) - span.begun) / 1000);
  return `${job}: from ${begun}, ${span.ended ? took : `for ${took} so far`}${span.reason ? `, ${span.reason.replaceAll("_", " ")}` : ""}`;
}
