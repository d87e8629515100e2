// What can be done to all chosen jobs at once.

import { call, ENDED, may, post } from "../api";
import { MOST_COMPARED } from "../compare/runs";
import { plural } from "../format";
import { again, copy, toAll } from "../job/actions";
import { go } from "../router";
import type { TableRow } from "./columns";

interface Props {
  rows: readonly TableRow[];
  clear: () => void;
  gone: (ids: ReadonlySet<string>) => void;
}

export function BulkBar(props: Props) {
  const { rows } = props;
  if (!rows.length) return null;
  const ids = rows.map((row) => row.job.id);
  const running = rows.filter((row) => !ENDED.has(row.job.state) && !row.job.cancel_requested).map((row) => row.job.id);
  const ended = rows.filter((row) => ENDED.has(row.job.state)).map((row) => row.job.id);
  const cancel = async () => {
    if (!window.confirm(`Cancel ${plural(running.length, "job")}?`)) return;
    await toAll(running, "cancelled", (id) => post(`/v1/jobs/${id}/cancel`));
    props.clear();
  };
  const remove = async () => {
    if (!window.confirm(`Delete ${plural(ended.length, "job")} with logs, reports and files?`)) return;
    props.gone(await toAll(ended, "deleted", (id) => call("DELETE", `/v1/jobs/${id}`)));
    props.clear();
  };
  return (
    <div class="bulk" role="toolbar" aria-label="The chosen jobs">
      <b aria-live="polite">{plural(rows.length, "job")} chosen</b>
      <button
        disabled={rows.length < 2}
        title={rows.length > MOST_COMPARED ? `the first ${MOST_COMPARED}` : ""}
        onClick={() => go(`/compare?jobs=${ids.slice(0, MOST_COMPARED).join(",")}`)}
      >
        Compare
      </button>
      {may("submit") && (
        <button onClick={() => toAll(ids, "submitted again", again).then(props.clear)}>Submit again</button>
      )}
      <button onClick={() => copy(ids.join("\n"), plural(ids.length, "id"))}>Copy ids</button>
      {may("submit") && running.length > 0 && (
        <button class="risky" onClick={cancel}>
          Cancel {running.length}
        </button>
      )}
      {may("submit") && ended.length > 0 && (
        <button class="risky" onClick={remove}>
          Delete {ended.length}
        </button>
      )}
      <button class="plain" onClick={props.clear}>
        Clear
      </button>
    </div>
  );
}
