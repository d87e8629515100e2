import { useState } from "preact/hooks";

import type { Finding } from "../api";
import { findingCost, plural } from "../format";
import { type Change, changesOf } from "../submit/changes";

/** Findings that are there at once, so that the split stays in sight below them. */
const FIRST = 3;

interface Props {
  findings: Finding[];
  running: boolean;
  /** What happens to a suggestion that is accepted, where it can be. */
  apply?: ((changes: readonly Change[]) => void) | undefined;
}

export function Findings(props: Props) {
  const [all, setAll] = useState(false);
  const { findings } = props;
  if (!findings.length) {
    return (
      <p class="muted">
        {props.running ? "Nothing to change so far." : "Nothing to change: the split is as even as it can be."}
      </p>
    );
  }
  const shown = all ? findings : findings.slice(0, FIRST);
  return (
    <>
      <ul class="findings">
        {shown.map((one) => (
          <FindingItem key={one.code + one.message} finding={one} apply={props.apply} />
        ))}
      </ul>
      {findings.length > shown.length && (
        <button class="plain" onClick={() => setAll(true)}>
          {plural(findings.length - shown.length, "more finding")}
        </button>
      )}
    </>
  );
}

function FindingItem(props: { finding: Finding; apply: Props["apply"] }) {
  const { finding, apply } = props;
  const cost = findingCost(finding);
  const changes = apply ? changesOf(finding.suggestion) : [];
  return (
    <li class={finding.severity}>
      <span class="tag">{finding.code}</span> <span dir="auto">{finding.message}</span>
      {cost && <span class="muted"> {cost}</span>}
      {finding.suggestion && (
        <div class="do">
          <span dir="auto">→ {finding.suggestion}</span>{" "}
          {apply && changes.length > 0 && (
            <button
              class="small"
              title={changes.map(([path, value]) => `${path}: ${JSON.stringify(value)}`).join("\n")}
              aria-label={`Apply the suggestion of ${finding.code}`}
              onClick={() => apply(changes)}
            >
              Apply to a copy
            </button>
          )}
        </div>
      )}
    </li>
  );
}
