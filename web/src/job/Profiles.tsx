import { useEffect, useState } from "preact/hooks";

import { get, type JobStatus, may, type Profile, type ProfileList, post } from "../api";
import { bytes, clock, plural } from "../format";
import { attempt } from "../toast";

const STEPS = 10;
const POLL_MS = 1000;

/** The profiles of a job's newest attempt, and a button for another one while the job runs. */
export function Profiles(props: { job: JobStatus; onDone: () => void }) {
  const { job } = props;
  const [profiles, setProfiles] = useState<Profile[]>([]);
  const [asked, setAsked] = useState(0);
  useEffect(() => {
    let timer = 0;
    let left = false;
    let waited = false;
    const read = async () => {
      const found = (await get<ProfileList>(`/v1/jobs/${job.id}/profiles`).catch(() => null))?.profiles;
      if (left) return;
      if (found) setProfiles(found);
      if (found?.some((one) => one.state === "recording")) {
        waited = true;
        timer = window.setTimeout(read, POLL_MS);
      } else if (waited) props.onDone();
    };
    void read();
    return () => {
      left = true;
      window.clearTimeout(timer);
    };
  }, [job.id, job.attempt, job.state, asked]);
  const recording = profiles.some((one) => one.state === "recording");
  const running = job.state === "running";
  const record = () =>
    attempt(async () => {
      await post(`/v1/jobs/${job.id}/profile`, { steps: STEPS });
      setAsked(asked + 1);
    });
  if (!running && profiles.length === 0) return null;
  return (
    <section class="panel">
      <h2>Profiles</h2>
      {may("submit") && running && (
        <p>
          <button disabled={recording || job.cancel_requested} onClick={record}>
            {recording ? "Recording …" : `Profile ${STEPS} steps now`}
          </button>
        </p>
      )}
      {running && profiles.length === 0 && (
        <p class="muted">
          A trace of the next steps from every rank; the job goes on. Open it in Perfetto or chrome://tracing.
        </p>
      )}
      {[...profiles].reverse().map((one) => (
        <ProfileRow key={one.number} id={job.id} profile={one} />
      ))}
    </section>
  );
}

function ProfileRow(props: { id: string; profile: Profile }) {
  const { id, profile } = props;
  const title = `Profile ${profile.number}: ${plural(profile.steps, "step")}${profile.requested_at ? ` at ${clock(profile.requested_at)}` : ""}`;
  return (
    <>
      <h3>
        {title}
        {profile.state === "lost" && ", lost: the attempt ended first"}
      </h3>
      {profile.ranks.length > 0 && (
        <div class="scroll" tabIndex={0} role="group" aria-label={title}>
          <table>
            <tbody>
              {profile.ranks.map((rank) => (
                <tr key={rank.rank}>
                  <td>rank {rank.rank}</td>
                  {rank.path ? (
                    <>
                      <td class="name">
                        <a
                          href={`/v1/jobs/${id}/artifacts/${rank.path}?attempt=${profile.attempt}`}
                          download={`profile-${profile.number}-rank-${rank.rank}.json.gz`}
                        >{`rank-${rank.rank}.json.gz`}</a>
                      </td>
                      <td class="n">{bytes(rank.bytes)}</td>
                      <td class="muted">
                        {plural(rank.steps, "step")} in {rank.seconds.toFixed(2)} s
                      </td>
                    </>
                  ) : (
                    <td class="muted" colSpan={3}>
                      <bdi>{rank.error}</bdi>
                    </td>
                  )}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}
