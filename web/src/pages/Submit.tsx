import { useEffect, useMemo, useState } from "preact/hooks";

import { type JobStatus, may, type Plan, Problem, post } from "../api";
import { PlanView } from "../parts/Plan";
import { go } from "../router";
import { DRAFT } from "../submit/draft";
import { Editor, type Mark, show } from "../submit/Editor";
import { EXAMPLES, FIRST } from "../submit/examples";
import { placeInWords, placeOf, places } from "../submit/places";

/** After the last key: the service is asked what it thinks of the spec. */
const REST_MS = 350;

export function SubmitPage() {
  const [text, setText] = useState(() => sessionStorage.getItem(DRAFT) ?? EXAMPLES.get(FIRST)!);
  const [plan, setPlan] = useState<Plan | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const [asked, setAsked] = useState("");

  useEffect(() => {
    document.title = "Submit: Shardyard";
  }, []);
  useEffect(() => {
    sessionStorage.setItem(DRAFT, text);
    let over = false;
    const timer = setTimeout(async () => {
      const [found, wrong] = await post<Plan>("/v1/plan", text).then(
        (plan) => [plan, null] as const,
        (error: Problem) => [null, error] as const,
      );
      if (over) return;
      if (found) setPlan(found);
      setProblem(wrong);
      setAsked(text);
    }, REST_MS);
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [text]);

  const submit = async () => {
    if (busy || !may("submit")) return;
    setBusy(true);
    try {
      const job = await post<JobStatus>("/v1/jobs", text, { "Idempotency-Key": crypto.randomUUID() });
      sessionStorage.removeItem(DRAFT);
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
  const open = async (file: File | undefined) => file && setText(await file.text());
  const marks = useMemo(() => marksOf(problem, asked), [problem, asked]);
  return (
    <>
      <div class="row head">
        <h1>Submit a job</h1>
        <label>
          Start from
          <select value="" onChange={(event) => setText(EXAMPLES.get(event.currentTarget.value) ?? text)}>
            <option value="">an example</option>
            {[...EXAMPLES.keys()].map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <label>
          or a file{" "}
          <input
            type="file"
            accept=".json,application/json"
            onChange={(event) => void open(event.currentTarget.files?.[0])}
          />
        </label>
        <span class="muted">
          For code of your own: <code>shardyard submit --script train.py</code>
        </span>
      </div>
      <div class="columns even">
        <div>
          <Editor text={text} change={setText} marks={marks} wrong={problem != null} submit={submit} />
          <div class="row">
            {may("submit") ? (
              <button class="main" disabled={busy || problem != null} onClick={submit}>
                Submit
              </button>
            ) : (
              <span class="muted">Your token may look, and not submit.</span>
            )}
            <button onClick={tidy}>Tidy up</button>
            <span class="muted">Ctrl-Enter submits</span>
          </div>
        </div>
        <div class="panel" aria-live="polite" id="problems">
          <h2>
            The split that this would give <small>of one epoch</small>
          </h2>
          {problem && <ProblemView problem={problem} marks={marks} />}
          {plan && (
            <div class={problem ? "stale" : ""}>
              <PlanView plan={plan} />
            </div>
          )}
        </div>
      </div>
    </>
  );
}

function ProblemView(props: { problem: Problem; marks: Mark[] }) {
  const { problem, marks } = props;
  const at = (words: string) => {
    const mark = marks.find((one) => one.words === words);
    return (
      mark && (
        <>
          {" "}
          <button class="plain" onClick={() => show(mark.place)}>
            line {mark.place.line}
          </button>
        </>
      )
    );
  };
  return (
    <div class="notice bad">
      {problem.message}
      {problem.errors.length === 0 && at(problem.message)}
      {problem.errors.length > 0 && (
        <ul>
          {problem.errors.map((one, n) => (
            <li key={n}>
              <b class="mono">{one.field}</b>: <span dir="auto">{one.message}</span>
              {at(one.message)}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function marksOf(problem: Problem | null, text: string): Mark[] {
  if (!problem) return [];
  const known = places(text);
  const found = problem.errors.map((one) => ({ place: placeOf(one.field, known), words: one.message }));
  if (!found.length) found.push({ place: placeInWords(problem.message, text), words: problem.message });
  return found.filter((mark): mark is Mark => mark.place != null);
}
