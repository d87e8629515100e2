import { useEffect, useMemo, useState } from "preact/hooks";

import { ENDED, may } from "../api";
import { useClock } from "../clock";
import { count } from "../format";
import { cancelMatching } from "../job/actions";
import { BulkBar } from "../jobs/Bulk";
import { ChooseColumns } from "../jobs/Choose";
import { asked, FIRST_COLUMNS, orderOf, sorted, textOf } from "../jobs/columns";
import { JobsTable } from "../jobs/JobsTable";
import { MOST, useJobs } from "../jobs/list";
import { StateChips, TextFilter, Views } from "../jobs/Toolbar";
import { FleetStrip } from "../parts/FleetStrip";
import { go, Link, place, withQuery } from "../router";
import { usePhone } from "../screen";

const FILTERS = ["state", "pool", "label", "search", "archived"];

export function JobsPage() {
  const query = place.value.searchParams;
  const filter = new URLSearchParams(
    FILTERS.flatMap((name) => (query.get(name) ? [[name, query.get(name) ?? ""]] : [])),
  );
  const columns = useMemo(() => {
    const named = (query.get("columns") ?? "").split(",").filter(Boolean);
    return named.length ? named : FIRST_COLUMNS;
  }, [query.get("columns")]);
  const order = orderOf(query.get("sort") ?? "");
  const density = query.get("density") === "compact" ? "compact" : "roomy";
  const phone = usePhone();
  const now = useClock();
  const [atTop, setAtTop] = useState(true);
  const [chosen, choose] = useState<ReadonlySet<string>>(new Set());
  const wanted = order ? [...new Set([...asked(columns), ...asked([order.column])])] : asked(columns);
  const list = useJobs(filter, wanted, order != null, atTop && !order);
  const rows = useMemo(() => sorted(list.rows ?? [], order, now), [list.rows, textOf(order)]);
  useEffect(() => {
    document.title = "Jobs: Shardyard";
  }, []);
  useEffect(() => choose(new Set()), [filter.toString()]);
  const filtered = ["pool", "label", "search", "archived"].some((name) => filter.has(name));
  const chosenRows = rows.filter((row) => chosen.has(row.job.id));
  return (
    <div class="jobs-page">
      <FleetStrip />
      <div class="row head">
        <h1>Jobs</h1>
        <TextFilter name="search" title="Search" size={17} hint="name, label or id  ( / )" />
        <TextFilter name="label" title="Label" size={9} hint="key=value" />
        <TextFilter name="pool" title="Pool" size={6} hint="any" />
        <label>
          <input
            type="checkbox"
            checked={filter.get("archived") === "true"}
            onChange={(event) => go(withQuery({ archived: event.currentTarget.checked ? "true" : "" }), "replace")}
          />{" "}
          archived
        </label>
        <span class="grow" />
        <span class="muted" role="status">
          {list.live ? "" : "not live"}
        </span>
        {list.fresh > 0 && <button onClick={list.reload}>{count(list.fresh)} new</button>}
        {may("submit") && (
          <Link to="/submit" class="button main">
            Submit a job
          </Link>
        )}
      </div>
      <div class="row tools">
        <StateChips counts={list.counts} state={filter.get("state") ?? ""} filtered={filtered} />
        <span class="grow" />
        <Views />
        <ChooseColumns
          columns={columns}
          set={(names) =>
            go(withQuery({ columns: names.join() === FIRST_COLUMNS.join() ? "" : names.join() }), "replace")
          }
        />
        <button
          aria-pressed={density === "compact"}
          onClick={() => go(withQuery({ density: density === "compact" ? "" : "compact" }), "replace")}
        >
          Compact
        </button>
        <CancelAll filter={filter} />
      </div>
      {list.problem && (
        <div class="notice bad" role="alert">
          {list.problem}
        </div>
      )}
      {list.rows?.length === 0 && !list.more && !list.problem && <Empty filtered={filter.size > 0} />}
      {rows.length > 0 && (
        <JobsTable
          list={list}
          rows={rows}
          columns={columns}
          density={density}
          phone={phone}
          order={order}
          setOrder={(next) => go(withQuery({ sort: textOf(next) }), "replace")}
          chosen={chosen}
          choose={choose}
          scrolled={setAtTop}
          now={now}
        />
      )}
      <p class="muted small jobs-foot" role="status">
        {rows.length > 0 && `${count(rows.length)} ${list.more ? "so far" : rows.length === 1 ? "job" : "jobs"}`}
        {list.busy && order ? ", reading the others to sort them" : ""}
        {rows.length >= MOST ? `; the table holds the newest ${count(MOST)}` : ""}
      </p>
      <BulkBar rows={chosenRows} clear={() => choose(new Set())} gone={list.drop} />
    </div>
  );
}

function CancelAll(props: { filter: URLSearchParams }) {
  const { filter } = props;
  const able = !filter.has("search") && !filter.has("archived") && !ENDED.has(filter.get("state") ?? "");
  if (!may("submit") || !able) return null;
  const cancel = () => {
    const chosen = Object.fromEntries(filter);
    const words = Object.entries(chosen).map(([name, value]) => `${name} ${value}`);
    if (!window.confirm(`Cancel ${words.join(", ") || "every job of yours that has not ended"}?`)) return;
    void cancelMatching(chosen);
  };
  return (
    <button class="plain risky" onClick={cancel}>
      Cancel these …
    </button>
  );
}

function Empty(props: { filtered: boolean }) {
  if (props.filtered) {
    return (
      <p>
        No job matches. <Link to="/">Show all</Link>
      </p>
    );
  }
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
