import type { Finding } from "../api";

export function Findings(props: { findings: Finding[]; running: boolean }) {
  if (!props.findings.length) {
    return <p class="muted">{props.running ? "Nothing to change so far." : "Nothing to change: the split is as even as it can be."}</p>;
  }
  return (
    <ul class="findings">
      {props.findings.map((one) => (
        <li key={one.code + one.message} class={one.severity}>
          <span class="tag">{one.code}</span> <span dir="auto">{one.message}</span>
          {one.suggestion && <div class="do" dir="auto">→ {one.suggestion}</div>}
        </li>
      ))}
    </ul>
  );
}
