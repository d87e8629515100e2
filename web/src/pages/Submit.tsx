import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { get, type JobStatus, may, type Plan, Problem, post } from "../api";
import { plural } from "../format";
import { PlanView } from "../parts/Plan";
import { go } from "../router";
import { chosenFiles, type Dropped, droppedFiles, entrypointOf, selected, upload } from "../submit/bundle";
import { type Change, type Json, valueAt, withChange, withChanges } from "../submit/changes";
import type { Grammar, Recipe, Schema } from "../submit/completion";
import { DRAFT } from "../submit/draft";
import { Editor, type Mark, show } from "../submit/Editor";
import { EXAMPLES, FIRST } from "../submit/examples";
import { Form } from "../submit/Form";
import { placeInWords, placeOf, places } from "../submit/places";
import { attempt, say } from "../toast";

/** After the last key: the service is asked what it thinks of the spec. */
const REST_MS = 350;

export function SubmitPage() {
  const [text, setText] = useState(() => sessionStorage.getItem(DRAFT) ?? EXAMPLES.get(FIRST)!);
  const [plan, setPlan] = useState<Plan | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const [asked, setAsked] = useState("");
  const [grammar, setGrammar] = useState<Grammar | null>(null);

  useEffect(() => {
    document.title = "Submit: Shardyard";
    readGrammar().then(setGrammar, () => undefined); // without it nothing is offered
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

  const spec = useMemo(() => parsed(text), [text]);
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
  const put = (value: Json) => setText(JSON.stringify(value, null, 2));
  const set = (change: Change) => spec !== undefined && put(withChange(spec, change));
  const tidy = () => spec !== undefined && put(spec);
  const marks = useMemo(() => marksOf(problem, asked), [problem, asked]);
  const apply =
    may("submit") && spec !== undefined ? (changes: readonly Change[]) => put(withChanges(spec, changes)) : undefined;
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
        <DropZone take={(files) => takeFiles(files, spec, setText)} />
      </div>
      <div class="columns even submit">
        <div>
          <Editor text={text} change={setText} marks={marks} grammar={grammar} submit={submit} />
          <div class="row">
            {may("submit") ? (
              <button class="main" disabled={busy || problem != null} onClick={submit}>
                Submit
              </button>
            ) : (
              <span class="muted">Your token may look, and not submit.</span>
            )}
            <button onClick={tidy}>Tidy up</button>
            <span class="muted">
              <kbd>Ctrl-Enter</kbd> submits, <kbd>Ctrl-Space</kbd> shows what may stand here
            </span>
          </div>
        </div>
        <div>
          <div class="panel">
            <Form spec={spec} grammar={grammar} set={set} />
          </div>
          <div class="panel" aria-live="polite" id="problems">
            <h2>
              The split that this would give <small>of one epoch</small>
            </h2>
            {problem && <ProblemView problem={problem} marks={marks} />}
            {plan && (
              <div class={problem ? "stale" : ""}>
                <PlanView plan={plan} apply={apply} />
              </div>
            )}
          </div>
        </div>
      </div>
    </>
  );
}

/** Takes specs, scripts and folders that are dropped anywhere on the page, or chosen. */
function DropZone(props: { take: (files: Dropped[]) => Promise<void> }) {
  const latest = useRef(props.take);
  latest.current = props.take;
  const [over, setOver] = useState(false);
  useEffect(() => {
    const stop = new AbortController();
    const { signal } = stop;
    const isFile = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;
    const hovered = (event: DragEvent) => {
      if (!isFile(event)) return;
      event.preventDefault();
      setOver(true);
    };
    document.addEventListener("dragover", hovered, { signal });
    document.addEventListener("dragleave", (event) => event.relatedTarget ?? setOver(false), { signal });
    document.addEventListener(
      "drop",
      (event) => {
        setOver(false);
        if (!isFile(event) || !event.dataTransfer) return;
        event.preventDefault();
        const transfer = event.dataTransfer;
        void attempt(async () => latest.current(await droppedFiles(transfer)));
      },
      { signal },
    );
    return () => stop.abort();
  }, []);
  const chosen = (event: { currentTarget: HTMLInputElement }) => {
    const files = event.currentTarget.files;
    if (files?.length) void attempt(() => latest.current(chosenFiles(files)));
  };
  return (
    <span class={over ? "drop over" : "drop"}>
      <label class="button">
        Open a spec or script …{" "}
        <input type="file" class="unseen" accept=".json,.py,application/json" onChange={chosen} />
      </label>
      <label class="button">
        a folder … <input type="file" class="unseen" ref={folders} onChange={chosen} />
      </label>
      <span class="muted">or drop it here</span>
    </span>
  );
}

/** Have a field take a folder. */
function folders(node: HTMLInputElement | null): void {
  if (node) node.webkitdirectory = true;
}

/** A single JSON file is a spec; anything else is code, which is uploaded for a job that runs it. */
async function takeFiles(files: Dropped[], spec: Json | undefined, setText: (text: string) => void): Promise<void> {
  const [first] = files;
  if (files.length === 1 && first?.path.endsWith(".json")) return setText(await first.file.text());
  const { kept, left } = selected(files);
  const entrypoint = entrypointOf(kept.map((one) => one.path));
  if (!entrypoint) throw new Error("there is no .py file in it");
  say(`Uploading ${plural(kept.length, "file")} …`, "good");
  const bundle = await upload(kept);
  setText(JSON.stringify(scriptSpec(spec, bundle, entrypoint), null, 2));
  say(
    `${plural(kept.length, "file")} uploaded${left.length ? `, ${left.length} left out (caches, keys, .env)` : ""}`,
    "good",
  );
}

/** A spec that runs uploaded code, on the devices that the spec before it asks for. */
function scriptSpec(spec: Json | undefined, bundle: string, entrypoint: string): Json {
  const before = spec ?? {};
  const script = valueAt(before, "program.kind") === "script";
  return {
    name: entrypoint.replace(/^.*\/|\.py$/g, ""),
    resources: valueAt(before, "resources") ?? { devices: 1 },
    parallelism: { strategy: (script ? valueAt(before, "parallelism.strategy") : undefined) ?? "single" },
    program: { kind: "script", bundle, entrypoint, args: (script ? valueAt(before, "program.args") : undefined) ?? [] },
  };
}

async function readGrammar(): Promise<Grammar> {
  const [document, recipes] = await Promise.all([
    get<{ components: { schemas: Record<string, Schema> } }>("/openapi.json"),
    get<Record<string, Record<string, Recipe>>>("/v1/recipes"),
  ]);
  return { root: { $ref: "JobSpec" }, schemas: document.components.schemas, recipes };
}

function parsed(text: string): Json | undefined {
  try {
    return JSON.parse(text) as Json;
  } catch {
    return undefined; // the problem beside the text says what is wrong with it
  }
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
