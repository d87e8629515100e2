import { useEffect, useState } from "preact/hooks";

import { type JobStatus, type Plan, Problem, post } from "../api";
import { PlanView } from "../parts/Plan";
import { go } from "../router";

const START = {
  name: "digits-dp3",
  resources: { devices: 3 },
  parallelism: { strategy: "dp" },
  program: {
    model: { ref: "digits_cnn" },
    data: { ref: "digits", args: { split: "train" }, batch_size: 64, shuffle: true },
    loss: { ref: "cross_entropy" },
    optimizer: { ref: "sgd", args: { lr: 0.05, momentum: 0.9 } },
    epochs: 6,
    evaluate: { data: { ref: "digits", args: { split: "test" } } },
  },
};
const KEPT = "shardyard.draft";
/** After the last key: the service is asked what it thinks of the spec. */
const REST_MS = 350;

export function SubmitPage() {
  const [text, setText] = useState(() => sessionStorage.getItem(KEPT) ?? JSON.stringify(START, null, 2));
  const [plan, setPlan] = useState<Plan | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);

  useEffect(() => {
    sessionStorage.setItem(KEPT, text);
    let over = false;
    const timer = setTimeout(async () => {
      try {
        const found = await post<Plan>("/v1/plan", text);
        if (over) return;
        setPlan(found);
        setProblem(null);
      } catch (error) {
        if (!over && error instanceof Problem) setProblem(error);
      }
    }, REST_MS);
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [text]);

  const submit = async () => {
    setBusy(true);
    try {
      const job = await post<JobStatus>("/v1/jobs", text, { "Idempotency-Key": crypto.randomUUID() });
      sessionStorage.removeItem(KEPT);
      go(`/jobs/${job.id}`);
    } catch (error) {
      if (error instanceof Problem) setProblem(error);
    } finally {
      setBusy(false);
    }
  };
  const tidy = () => {
    try {
      setText(JSON.stringify(JSON.parse(text), null, 2));
    } catch {
      // The problem beside the text says what is wrong with it.
    }
  };
  return (
    <>
      <div class="row head"><h1>Submit a job</h1><span class="muted">A recipe as JSON. For code of your own: <code>shardyard submit train.py</code></span></div>
      <div class="columns even">
        <div>
          <textarea
            aria-label="Job spec as JSON"
            rows={30}
            spellcheck={false}
            value={text}
            aria-invalid={problem != null}
            onInput={(event) => setText(event.currentTarget.value)}
            onKeyDown={(event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && void submit()}
          />
          <div class="row">
            <button class="main" disabled={busy || problem != null} onClick={submit}>Submit</button>
            <button onClick={tidy}>Tidy up</button>
            <span class="muted">Ctrl-Enter submits</span>
          </div>
        </div>
        <div class="panel" aria-live="polite">
          <h2>The split that this would give <small>of one epoch</small></h2>
          {problem && (
            <div class="notice bad">
              {problem.message}
              {problem.errors.length > 0 && (
                <ul>{problem.errors.map((one, n) => <li key={n}><b class="mono">{one.field}</b>: <span dir="auto">{one.problem ?? one.message}</span></li>)}</ul>
              )}
            </div>
          )}
          {plan && <div class={problem ? "stale" : ""}><PlanView plan={plan} /></div>}
        </div>
      </div>
    </>
  );
}
