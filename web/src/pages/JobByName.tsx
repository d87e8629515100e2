import { useEffect, useState } from "preact/hooks";

import { get } from "../api";
import { go, Link } from "../router";

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

export const isJobId = (word: string): boolean => ID.test(word);

/** An address with what people call a job: its name, the end of its id, `@last`. Its page follows. */
export function JobByName(props: { name: string }) {
  const [problem, setProblem] = useState("");
  useEffect(() => {
    get<{ id: string }>(`/v1/jobs/resolve?ref=${encodeURIComponent(props.name)}`).then(
      (job) => go(`/jobs/${job.id}`, "replace"),
      (error: Error) => setProblem(error.message),
    );
  }, [props.name]);
  return (
    <section class="panel">
      <p role={problem ? "alert" : "status"}>{problem || `looking for ${props.name} …`}</p>
      {problem && <Link to={`/?search=${encodeURIComponent(props.name)}`}>Search the list of jobs for it</Link>}
    </section>
  );
}
