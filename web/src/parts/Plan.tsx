// The split that a spec would give, before anything is sent.

import type { Finding, Pattern, Plan } from "../api";
import { count, NONE, plural } from "../format";
import { IDLE, meanOf, unevenClass } from "../marks";
import type { Change } from "../submit/changes";
import { Findings } from "./Findings";

export function PlanView(props: { plan: Plan; apply?: ((changes: readonly Change[]) => void) | undefined }) {
  const patterns: Pattern[] = props.plan.patterns;
  const findings: Finding[] = props.plan.findings;
  const devices = Math.max(0, ...patterns.map((pattern) => pattern.rows?.length ?? 0));
  return (
    <div>
      {patterns.length === 0 || devices === 0 ? (
        <p class="muted">
          Only the worker will know how this divides: {Object.values(props.plan.notes)[0] ?? "the data decide"}.
        </p>
      ) : (
        <div class="scroll">
          <table class={devices > 16 ? "map dense" : "map"}>
            <thead>
              <tr>
                <th class="head" scope="col">
                  batch
                </th>
                {Array.from({ length: devices }, (_, n) => (
                  <th key={n} scope="col">
                    <span class="dev">{n}</span>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {patterns.slice(0, 24).map((pattern, n) => {
                const mean = meanOf(pattern.rows ?? []);
                return (
                  <tr key={n}>
                    <th class="head" scope="row">
                      {pattern.phase} {pattern.batch_rows == null ? "" : `of ${count(pattern.batch_rows)}`}
                      <span class="muted"> · {pattern.steps == null ? NONE : plural(pattern.steps, "step")}</span>
                    </th>
                    {(pattern.rows ?? []).map((rows, device) =>
                      rows == null ? (
                        <td key={device} class="cell none">
                          {NONE}
                        </td>
                      ) : rows === 0 ? (
                        <td key={device} class="cell idle">
                          <span>{IDLE}</span>
                        </td>
                      ) : (
                        <td key={device} class={`cell ${unevenClass(rows, mean)}`}>
                          {count(rows)}
                        </td>
                      ),
                    )}
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      )}
      {props.plan.step_ms != null && (
        <p class="muted">
          A step would take about {Number(props.plan.step_ms.toPrecision(3))} ms on the slowest device:{" "}
          {props.plan.notes.step_ms}.
        </p>
      )}
      <Findings findings={findings} running={false} apply={props.apply} />
    </div>
  );
}
