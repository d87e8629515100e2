// What comes of dividing rows by weights: the times of a step, and the proof that no gradient changed.

import type { Report } from "../api";
import { number } from "../format";

/** Weights that are listed. */
const MOST = 16;
const SOURCES: Record<string, string> = {
  spec: "as the spec has them",
  measured: "measured before the first step",
  checkpoint: "as the checkpoint has them",
};

export function Weights(props: { report: Report }) {
  const { weights, notes } = props.report;
  if (weights == null) return null;
  const { gradient, seen_ms, even_ms, predicted_ms, speed_share } = weights;
  const listed = weights.weights?.slice(0, MOST).map(digits).join(", ");
  const more = (weights.weights?.length ?? 0) - MOST;
  return (
    <section class="panel" aria-label="Weights">
      <h2>
        Weights <small>{weights.weights && (SOURCES[weights.source] ?? weights.source)}</small>
      </h2>
      <table class="plain">
        <tbody>
          <Line name="rows are divided by" value={listed && `${listed}${more > 0 ? ` and ${more} more` : ""}`} />
          <Line name="a step on the slowest device" value={milliseconds(seen_ms)} />
          <Line name="predicted" value={milliseconds(predicted_ms)} />
          <Line name="with equal rows" value={milliseconds(even_ms)} />
          <Line
            name="of the sum of the devices' speeds"
            value={speed_share == null ? null : `${Math.round(speed_share * 100)} %`}
          />
          <Line
            name="gradient, off that of one device"
            value={gradient && `${(gradient.difference / (gradient.norm || 1)).toExponential(1)} of its norm`}
          />
        </tbody>
      </table>
      {notes["weights.gradient"] && <p class="muted">{notes["weights.gradient"]}</p>}
    </section>
  );
}

function Line(props: { name: string; value: string | null | undefined }) {
  if (!props.value) return null;
  return (
    <tr>
      <th scope="row">{props.name}</th>
      <td class="n">{props.value}</td>
    </tr>
  );
}

const digits = (value: number): string => number(Number(value.toPrecision(4)));
const milliseconds = (value: number | null): string | null =>
  value == null ? null : `${number(Number(value.toPrecision(3)))} ms`;
