import { useEffect, useRef, useState } from "preact/hooks";

import { ENDED, get, type JobSummary, type ListedJob, may, Problem, post } from "../api";
import { useClock } from "../clock";
import { asked, between, clock, count, duration, leader, plural } from "../format";
import { remove, resubmit } from "../job/Head";
import { follow } from "../live";
import { ProgressBar, StateMark, WhyText } from "../parts/State";
import { go, Link, place, withQuery } from "../router";
import { attempt, say } from "../toast";

const PAGE = 50;
/** Requests that one page of a search may take: each of them looks at some thousands of jobs. */
const SEARCHES = 10;
/** How often progress and places in the queue are looked at: no event tells them. */
const LOOK_MS = 2000;
/** After the last key in a field. */
const REST_MS = 300;
const STATES = ["queued", "starting", "running", "succeeded", "failed", "cancelled"];
const FILTERS = ["state", "pool", "label", "search", "archived"];

interface Page {
  jobs: ListedJob[];
  next: string | null;
}

export function JobsPage() {
  const query = place.value.searchParams;
  const wanted = new URLSearchParams(FILTERS.flatMap((name) => (query.get(name) ? [[name, query.get(name)!]] : [])));
  const list = useList(wanted);
  const { jobs } = list;
  const now = useClock();
  useEffect(() => {
    document.title = "Jobs: Shardyard";
  }, []);
  useEffect(() => {
    const slash = (event: KeyboardEvent) => {
      if (event.key !== "/" || event.target instanceof HTMLInputElement) return;
      event.preventDefault();
      document.querySelector<HTMLInputElement>("#search")?.focus();
    };
    document.addEventListener("keydown", slash);
    return () => document.removeEventListener("keydown", slash);
  }, []);
  return (
    <>
      <div class="row head">
        <h1>Jobs</h1>
        <Filters wanted={wanted} />
        <span class="grow" />
        <span class="muted" role="status">
          {list.live ? "" : "not live"}
        </span>
        {list.fresh > 0 && <button onClick={list.reload}>{count(list.fresh)} new</button>}
        {may("submit") && (
          <Link to="/submit" class="button">
            Submit a job
          </Link>
        )}
      </div>
      {list.problem && (
        <div class="notice bad" role="alert">
          {list.problem}
        </div>
      )}
      {jobs && jobs.length === 0 && !list.next && !list.problem && <Empty filtered={wanted.size > 0} />}
      {jobs && jobs.length > 0 && (
        <table class="jobs">
          <thead>
            <tr>
              <th scope="col">Job</th>
              <th scope="col">State</th>
              <th scope="col">Progress</th>
              <th scope="col">Devices</th>
              <th scope="col">Submitted</th>
              <th scope="col" class="n">
                Took
              </th>
              <th scope="col">
                <span class="unseen">Actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {jobs.map((job) => (
              <Row key={job.id} job={job} now={now} gone={() => list.drop(job.id)} />
            ))}
          </tbody>
        </table>
      )}
      {list.next && (
        <p class="more">
          <button disabled={list.busy} onClick={list.more}>
            {list.busy ? "Looking …" : "Older jobs"}
          </button>
        </p>
      )}
    </>
  );
}

function Row(props: { job: ListedJob; now: number; gone: () => void }) {
  const { job } = props;
  const ended = ENDED.has(job.state);
  return (
    <tr>
      <td>
        <Link to={`/jobs/${job.id}`} class="name">
          <bdi>{job.name}</bdi>
        </Link>
        <Labels labels={job.labels} />
      </td>
      <td>
        <StateMark state={job.state} cancelling={job.cancel_requested && !ended} />
        <div class="why">
          <WhyText job={job} />
        </div>
      </td>
      <td class="progress">
        {!ended && job.state !== "queued" && <ProgressBar progress={job.progress ?? null} running />}
        {job.queue_position != null && <span>place {count(job.queue_position)} in the queue</span>}
      </td>
      <td>
        {job.strategy} on {asked(job)}
        <div class="muted small">{leader(job.placement) ?? job.pool}</div>
      </td>
      <td title={job.created_at}>{clock(job.created_at)}</td>
      <td class="n">{duration(between(job.started_at, job.finished_at, props.now))}</td>
      <td class="does">
        {may("submit") && (
          <>
            {!ended && (
              <button
                class="plain risky"
                disabled={job.cancel_requested}
                aria-label={`Cancel ${job.name}`}
                onClick={() => attempt(() => post(`/v1/jobs/${job.id}/cancel`))}
              >
                Cancel
              </button>
            )}
            {ended && (
              <button class="plain" aria-label={`Submit ${job.name} again`} onClick={() => resubmit(job.id)}>
                Again
              </button>
            )}
            {ended && (
              <button class="plain risky" aria-label={`Delete ${job.name}`} onClick={() => remove(job, props.gone)}>
                Delete
              </button>
            )}
          </>
        )}
      </td>
    </tr>
  );
}

function Filters(props: { wanted: URLSearchParams }) {
  const { wanted } = props;
  const set = (name: string) => (event: { currentTarget: { value: string } }) =>
    go(withQuery({ [name]: event.currentTarget.value.trim() }), "replace");
  const cancelAll = () => {
    const chosen = Object.fromEntries(wanted);
    const words =
      Object.entries(chosen)
        .map(([name, value]) => `${name} ${value}`)
        .join(", ") || "every job of yours that has not ended";
    if (!window.confirm(`Cancel ${words}?`)) return;
    void attempt(async () => {
      const done = await post<{ cancelled: number; cancelling: number; complete: boolean }>(
        "/v1/jobs/cancel",
        wanted.size ? chosen : { all: true },
      );
      say(
        `${plural(done.cancelled + done.cancelling, "job")} cancelled${done.complete ? "" : "; there are more: ask again"}`,
      );
    });
  };
  const cancellable =
    !wanted.has("search") && !wanted.has("archived") && !ENDED.has((wanted.get("state") ?? "") as "failed");
  return (
    <>
      <TextFilter name="search" title="Search" size={17} hint="name, label or id  ( / )" />
      <label>
        State
        <select value={wanted.get("state") ?? ""} onChange={set("state")}>
          <option value="">any</option>
          {STATES.map((state) => (
            <option key={state}>{state}</option>
          ))}
        </select>
      </label>
      <TextFilter name="label" title="Label" size={9} hint="key=value" />
      <TextFilter name="pool" title="Pool" size={6} hint="any" />
      <label>
        <input
          type="checkbox"
          checked={wanted.get("archived") === "true"}
          onChange={(event) => go(withQuery({ archived: event.currentTarget.checked ? "true" : "" }), "replace")}
        />{" "}
        archived
      </label>
      {may("submit") && cancellable && (
        <button class="risky" onClick={cancelAll}>
          Cancel these …
        </button>
      )}
    </>
  );
}

/** A field whose text goes into the address when its writer rests. */
function TextFilter(props: { name: string; title: string; size: number; hint: string }) {
  const given = place.value.searchParams.get(props.name) ?? "";
  const [text, setText] = useState(given);
  useEffect(() => setText(given), [given]);
  useEffect(() => {
    if (text.trim() === given) return;
    const timer = setTimeout(() => go(withQuery({ [props.name]: text.trim() }), "replace"), REST_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <label>
      {props.title}{" "}
      <input
        id={props.name}
        type="search"
        size={props.size}
        maxLength={200}
        placeholder={props.hint}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
    </label>
  );
}

function Labels(props: { labels: Record<string, string> }) {
  const labels = Object.entries(props.labels);
  if (!labels.length) return null;
  return (
    <div>
      {labels.slice(0, 4).map(([name, value]) => (
        <Link key={name} to={withQuery({ label: `${name}=${value}` })} class="label">
          <bdi>
            {name}={value}
          </bdi>
        </Link>
      ))}
    </div>
  );
}

function Empty(props: { filtered: boolean }) {
  if (props.filtered)
    return (
      <p>
        No job matches. <Link to="/">Show all</Link>
      </p>
    );
  return (
    <div class="notice">
      No jobs yet.{" "}
      {may("submit") && (
        <>
          <Link to="/submit">Submit one here</Link>, or from a terminal: <code>shardyard submit job.json --watch</code>
        </>
      )}
    </div>
  );
}

/** A list that keeps itself up to date. What is in sight does not move: new jobs wait for a click once one has scrolled. */
function useList(wanted: URLSearchParams) {
  const key = wanted.toString();
  const [jobs, setJobs] = useState<ListedJob[] | null>(null);
  const [next, setNext] = useState<string | null>(null);
  const [problem, setProblem] = useState("");
  const [live, setLive] = useState(true);
  const [fresh, setFresh] = useState(0);
  const [busy, setBusy] = useState(false);
  const known = useRef<ListedJob[]>([]);
  known.current = jobs ?? [];
  const newest = useRef(key);
  newest.current = key;

  const load = async (from: string | null) => {
    const page = new URLSearchParams(wanted);
    page.set("limit", String(PAGE));
    const before = from ? known.current : [];
    const found: ListedJob[] = [];
    let cursor = from;
    setBusy(true);
    try {
      for (let request = 0; request < SEARCHES; request += 1) {
        if (cursor) page.set("cursor", cursor);
        const answer = await get<Page>(`/v1/jobs?${page}`);
        if (newest.current !== key) return;
        found.push(...answer.jobs);
        cursor = answer.next;
        const enough = !cursor || found.length >= PAGE;
        if (enough || found.length) setJobs([...before, ...found]); // a search shows what it has, and goes on
        setNext(cursor);
        if (enough) break;
      }
      setProblem("");
      if (!from) setFresh(0);
    } catch (error) {
      if (newest.current === key) setProblem(error instanceof Problem ? error.message : String(error));
    } finally {
      if (newest.current === key) setBusy(false);
    }
  };
  /** The first page again, for progress and places in the queue; jobs that it does not have stay as they are. */
  const refresh = async () => {
    const page = new URLSearchParams({ ...Object.fromEntries(wanted), limit: String(PAGE) });
    const found = await get<Page>(`/v1/jobs?${page}`).catch(() => null);
    if (!found || newest.current !== key) return;
    const changed = new Map(found.jobs.map((job) => [job.id, job]));
    setJobs((before) => before && before.map((job) => changed.get(job.id) ?? job));
  };

  useEffect(() => {
    setNext(null);
    setFresh(0);
    const first = load(null);
    let followed = false;
    return follow(
      "/v1/events",
      {
        job: (changed: JobSummary) => {
          const listed = known.current;
          if (listed.some((job) => job.id === changed.id)) {
            setJobs((before) => before && before.map((job) => (job.id === changed.id ? told(job, changed) : job)));
          } else if (changed.created_at >= (listed[0]?.created_at ?? "")) setFresh((count) => count + 1);
        },
        gone: (gone: { job_id: string }) =>
          setJobs((before) => before && before.filter((job) => job.id !== gone.job_id)),
        resync: () => void (known.current.length > PAGE ? refresh() : load(null)),
      },
      (now) => {
        setLive(now);
        if (!now || followed) return;
        followed = true;
        void first.then(() => load(null)); // what happened before there was a stream is in none of its events
      },
    );
  }, [key]);
  useEffect(() => {
    if (!fresh || window.scrollY >= 40) return;
    const timer = setTimeout(() => void load(null), REST_MS);
    return () => clearTimeout(timer);
  }, [fresh]);
  const moving = (jobs ?? []).slice(0, PAGE).some((job) => !ENDED.has(job.state));
  useEffect(() => {
    if (!moving && live) return;
    const timer = setInterval(
      () => !document.hidden && void (live || known.current.length > PAGE ? refresh() : load(null)),
      LOOK_MS,
    );
    return () => clearInterval(timer);
  }, [key, moving, live]);

  return {
    jobs,
    next,
    problem,
    live,
    fresh,
    busy,
    reload: () => {
      window.scrollTo(0, 0);
      void load(null);
    },
    more: () => void load(next),
    drop: (id: string) => setJobs((before) => before && before.filter((job) => job.id !== id)),
  };
}

/** A job as an event tells it, which knows neither progress nor what is before it in the queue. */
function told(before: ListedJob, changed: JobSummary): ListedJob {
  const waits = changed.state === "queued" && before.state === "queued";
  return {
    ...changed,
    progress: changed.attempt === before.attempt ? (before.progress ?? null) : null,
    queue_position: waits ? (before.queue_position ?? null) : null,
    reason: waits && before.reason.message ? before.reason : changed.reason,
  };
}
