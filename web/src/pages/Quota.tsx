// What the tenant, and the token of this session, may use and use.

import { useEffect } from "preact/hooks";

import { get, type Quota, type QuotaLimit } from "../api";
import { bytes, clock, number, percent } from "../format";
import { useLooking } from "../looking";

/** From this share on, a limit is nearly reached. */
const NEARLY = 0.9;

const LIMITS: Record<string, { title: string; about: string; show: (value: number) => string }> = {
  jobs: { title: "Jobs that have not ended", about: "when it is reached, new jobs are refused", show: number },
  running: { title: "Jobs that run at a time", about: "when it is reached, jobs wait", show: number },
  devices: { title: "Devices at a time", about: "when it is reached, jobs wait", show: number },
  device_hours: {
    title: "Device-hours",
    about: "when it is reached, jobs wait until older use is out of the window",
    show: number,
  },
  spec_bytes: {
    title: "Specs of jobs",
    about: "when it is reached, new jobs are refused; deleted jobs give it back",
    show: bytes,
  },
  file_bytes: {
    title: "Files of jobs",
    about:
      "logs, artifacts, checkpoints; when it is reached, new jobs are refused; deleted jobs give it back within minutes",
    show: bytes,
  },
  bundle_bytes: { title: "Bundles of code", about: "when it is reached, new code is refused", show: bytes },
};

export function QuotaPage() {
  const [found, problem] = useLooking(() => get<{ quotas: Quota[] }>("/v1/quota"));
  useEffect(() => {
    document.title = "Quota: Shardyard";
  }, []);
  return (
    <>
      <div class="row head">
        <h1>Quota</h1>
        <span class="muted">what you use, and may use</span>
      </div>
      {problem && (
        <div class="notice bad" role="alert">
          {problem}
        </div>
      )}
      {found?.quotas.map((quota) => (
        <QuotaPart key={quota.token ?? ""} quota={quota} />
      ))}
    </>
  );
}

function QuotaPart(props: { quota: Quota }) {
  const { quota } = props;
  const limits = quota.limits.filter((limit) => limit.allowed != null);
  return (
    <section class="panel quota">
      <h2>
        {quota.token ? (
          <>
            Token <bdi>{quota.token}</bdi>
          </>
        ) : (
          <>
            Tenant <bdi>{quota.tenant}</bdi>
          </>
        )}
      </h2>
      {limits.length === 0 && (
        <p class="muted">
          {quota.token
            ? "This token has no limits of its own: it may use what the tenant may use."
            : "Nothing is limited. Operators set limits with shardyard quota set."}
        </p>
      )}
      {limits.map((limit) => (
        <Limit key={limit.name} limit={limit} window={quota.window_hours} />
      ))}
    </section>
  );
}

function Limit(props: { limit: QuotaLimit; window: number }) {
  const { limit } = props;
  const { title, about, show } = LIMITS[limit.name] ?? {
    title: limit.name.replaceAll("_", " "),
    about: "",
    show: number,
  };
  const allowed = limit.allowed ?? 0;
  const used = limit.used ?? 0;
  const share = allowed > 0 ? Math.min(1, used / allowed) : 1;
  const standing = used >= allowed ? "reached" : share >= NEARLY ? "nearly reached" : "";
  const name = limit.name === "device_hours" ? `${title} in ${props.window} hours` : title;
  return (
    <div class={standing ? "limit tight" : "limit"}>
      <div class="row">
        <h3>{name}</h3>
        <span class="amount">
          {show(used)} of {show(allowed)}
          {allowed > 0 && <span class="muted"> · {percent(share)}</span>}
        </span>
        {standing && <span class="mark slow">{standing}</span>}
      </div>
      <progress max={1} value={share} aria-label={`${name}: ${show(used)} of ${show(allowed)}`} />
      <p class="small muted">
        {limit.free_at ? `below the limit again at ${clock(limit.free_at)}, if nothing more is used` : about}
      </p>
    </div>
  );
}
