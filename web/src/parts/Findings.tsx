import { useState } from "preact/hooks";

import type { Finding } from "../api";
import { findingCost, plural } from "../format";

/** Findings that are there at once, so that the split stays in sight below them. */
const FIRST = 3;

export function Findings(props: { findings: Finding[]; running: boolean }) {
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
          <li key={one.code + one.message} class={one.severity}>
            <span class="tag">{one.code}</span> <span dir="auto">{one.message}</span>
            {findingCost(one) && <span class="muted"> {findingCost(one)}</span>}
            {one.suggestion && (
              <div class="do" dir="auto">
                → {one.suggestion}
              </div>
            )}
          </li>
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
