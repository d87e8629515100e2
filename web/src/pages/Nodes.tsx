import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import {
  type Box,
  call,
  type Device,
  get,
  type JobList,
  type ListedJob,
  type LowDisk,
  may,
  me,
  type NodeList,
  type NodeView,
  type Pool,
  type PoolList,
  Problem,
} from "../api";
import { Gantt } from "../fleet/Gantt";
import { type Busy, type BusyByDevice, useUtilisation } from "../fleet/utilisation";
import { bytes, clock, plural } from "../format";
import { edit } from "../job/actions";
import { follow } from "../live";
import { type Action, Menu } from "../parts/Menu";
import { Link } from "../router";
import { type Look, throttled } from "../throttle";
import { attempt } from "../toast";

const LOOK_MS = 5000;
/** Jobs whose names are known to the page, and jobs that wait that a pool shows. */
const NAMED = 200;
const WAITING = 10;
const QUARANTINE_WORDS = "set apart in the dashboard";

interface Sight {
  pools: Pool[];
  nodes: NodeView[];
  running: Map<string, ListedJob>;
  waiting: ListedJob[];
}

export function NodesPage() {
  const [sight, setSight] = useState<Sight | null>(null);
  const [problem, setProblem] = useState("");
  const look = useRef(
    throttled(async () => {
      try {
        setSight(await all());
        setProblem("");
      } catch (error) {
        setProblem(error instanceof Problem ? error.message : String(error));
      }
    }),
  ).current;
  useEffect(() => {
    document.title = "Devices: Shardyard";
    void look();
    const timer = setInterval(() => !document.hidden && void look(), LOOK_MS);
    const stop = follow("/v1/events", { fleet: () => void look(), job: () => void look() });
    return () => {
      clearInterval(timer);
      stop();
    };
  }, []);
  const busy = useUtilisation(useMemo(() => [...(sight?.running.values() ?? [])], [sight]));
  return (
    <>
      <div class="row head">
        <h1>Devices</h1>
      </div>
      {problem && (
        <div class="notice bad" role="alert">
          {problem}
        </div>
      )}
      {sight?.pools.length === 0 && (
        <div class="notice">
          No node has registered yet. On the machine with the devices: <code>shardyard worker</code>
        </div>
      )}
      {sight?.pools.map((pool) => (
        <PoolPart key={pool.name} pool={pool} sight={sight} look={look} busy={busy} />
      ))}
      {sight && sight.nodes.length > 0 && <Gantt nodes={sight.nodes} running={sight.running} />}
    </>
  );
}

async function all(): Promise<Sight> {
  const [pools, nodes, running, queued] = await Promise.all([
    get<PoolList>("/v1/pools"),
    get<NodeList>("/v1/nodes"),
    get<JobList>(`/v1/jobs?state=running&limit=${NAMED}`),
    get<JobList>(`/v1/jobs?state=queued&limit=${NAMED}`),
  ]);
  const waiting = queued.jobs.sort(
    (a, b) => (a.queue_position ?? Infinity) - (b.queue_position ?? Infinity) || a.id.localeCompare(b.id),
  );
  return {
    pools: pools.pools,
    nodes: nodes.nodes,
    running: new Map(running.jobs.map((job) => [job.id, job])),
    waiting,
  };
}

function PoolPart(props: { pool: Pool; sight: Sight; look: Look; busy: BusyByDevice }) {
  const { pool, sight } = props;
  const waiting = sight.waiting.filter((job) => job.pool === pool.name);
  const nodes = sight.nodes.filter((node) => node.pool === pool.name);
  return (
    <section class="panel pool">
      <div class="row">
        <h2>
          <bdi>{pool.name}</bdi>
        </h2>
        <span class="muted">
          {pool.leased} of {plural(pool.devices, "device")} in use, {pool.free} free
          {pool.quarantined ? `, ${pool.quarantined} in quarantine` : ""} · {pool.live_nodes} of{" "}
          {plural(pool.nodes, "node")} alive{policyWords(pool)}
        </span>
      </div>
      <progress
        max={Math.max(pool.devices, 1)}
        value={pool.leased}
        aria-label={`${pool.leased} of ${pool.devices} devices in use`}
      />
      <div class={nodes.length > 2 ? "nodes many" : "nodes"}>
        {nodes.map((node) => (
          <NodePart key={node.id} node={node} sight={sight} look={props.look} busy={props.busy} />
        ))}
      </div>
      <h3>
        {pool.queued ? `${plural(pool.queued, "job")} wait${pool.queued === 1 ? "s" : ""}` : "Nothing waits"}
        {waiting.length < pool.queued && <small>; of the newest {waiting.length}, those that come first</small>}
      </h3>
      {waiting.length > 0 && (
        <ol class="queue">
          {waiting.slice(0, WAITING).map((job) => (
            <li key={job.id} value={job.queue_position ?? undefined}>
              <Link to={`/jobs/${job.id}`} class="name">
                <bdi>{job.name}</bdi>
              </Link>{" "}
              <span class="muted" dir="auto">
                {job.reason.message || job.reason.code.replaceAll("_", " ")}
              </span>
            </li>
          ))}
        </ol>
      )}
      {waiting.length > WAITING && <Link to={`/?state=queued&pool=${pool.name}`}>all that wait</Link>}
    </section>
  );
}

function NodePart(props: { node: NodeView; sight: Sight; look: Look; busy: BusyByDevice }) {
  const { node } = props;
  const operator = may("admin") && (me.value?.operator ?? false);
  const path = `/v1/nodes/${encodeURIComponent(node.id)}`;
  const act = (method: "POST" | "DELETE", path: string, body?: unknown) =>
    attempt(async () => {
      await call(method, path, body);
      await props.look(true);
    });
  const actionsOf = (device: Device): Action[] => {
    const history = { title: "History", href: `/devices/${encodeURIComponent(device.name_in_fleet)}` };
    if (!operator) return [history];
    const place = `${path}/devices/${device.device}/quarantine`;
    const apart = () => {
      const reason = window.prompt(`Why is ${device.label} of ${node.id} to be given to nobody?`, QUARANTINE_WORDS);
      if (reason) void act("POST", place, { reason });
    };
    return [
      history,
      device.quarantine
        ? { title: "Use again", act: () => void act("DELETE", place) }
        : { title: "Set apart …", risky: true, act: apart },
    ];
  };
  return (
    <div class="node">
      <div class="row">
        <b>
          <bdi>{node.id}</bdi>
        </b>
        <span
          class={
            node.alive && !node.draining && !node.unboxed && !node.low_disk ? "state running still" : "state cancelled"
          }
        >
          {standing(node)}
        </span>
        <span class="muted">
          {node.virtual ? `virtual, on ${node.host} · ` : ""}
          {node.topology ? `${node.topology} · ` : ""}
          {plural(node.cores, "core")} · version {node.version}
          {node.attempts ? ` · ${plural(node.attempts, "attempt")} here` : ""}
        </span>
        {may("submit") && node.alive && (
          <button
            title="A short job on as many devices as this node has; the report says which is slow"
            onClick={() => edit(testOf(node))}
          >
            Test …
          </button>
        )}
        {operator &&
          (node.draining ? (
            <button onClick={() => act("DELETE", `${path}/drain`)}>Take work again</button>
          ) : (
            <Drain drain={(body) => act("POST", `${path}/drain`, body)} />
          ))}
        {operator && !node.alive && (
          <button
            class="risky"
            onClick={() =>
              window.confirm(`Forget ${node.id}? For a node that is down for good.`) && act("DELETE", path)
            }
          >
            Forget
          </button>
        )}
        <BoxPart box={node.box} />
      </div>
      <ul class={node.devices.length > 16 ? "slots small" : "slots"}>
        {node.devices.map((device) => (
          <Slot
            key={device.device}
            device={device}
            job={device.job ? props.sight.running.get(device.job) : undefined}
            busy={props.busy.get(`${node.id} ${device.label}`)}
            actions={actionsOf(device)}
          />
        ))}
      </ul>
    </div>
  );
}

function standing(node: NodeView): string {
  if (!node.alive) return "down";
  if (node.stopping) return "stopping";
  if (!node.draining && node.unboxed) return "unboxed: no new work";
  if (!node.draining) return node.low_disk ? shortage(node.low_disk) : "takes work";
  return node.drain_deadline_at
    ? `draining, what runs here moves on at ${clock(node.drain_deadline_at)}`
    : "draining: no new work";
}

function shortage(disk: LowDisk): string {
  const files = disk.free_files * disk.reserve_bytes < disk.free_bytes * disk.reserve_files;
  const left = files ? plural(disk.free_files, "file") : bytes(disk.free_bytes);
  return `no new work: the disk of its ${disk.name} has ${left} left`;
}

/** What a pool's policy asks beyond the defaults. */
function policyWords(pool: Pool): string {
  const box = pool.box === "any" ? "" : ` · demands ${pool.box === "user" ? "a box" : `a ${pool.box} box`}`;
  const unboxed = pool.unboxed
    ? `, which ${plural(pool.unboxed, "live node")} lack${pool.unboxed === 1 ? "s" : ""}`
    : "";
  return `${box}${unboxed}${NETWORKS[pool.network] ?? ""}`;
}

const NETWORKS: Record<string, string> = {
  closed: " · no jobs over several nodes",
  host: " · jobs have the node's network",
};

const BOXES: Record<string, string> = { full: "full box", user: "box without root", none: "no box" };

/** The box that a node puts around jobs, and for all that is missing the reason. */
function BoxPart(props: { box: Box }) {
  const { level, rights } = props.box;
  const words = BOXES[level] ?? `${level} box`;
  if (!rights.length)
    return (
      <p class="small muted">It does not say which box it puts around jobs: its worker is of an earlier version.</p>
    );
  const lacks = rights.filter((right) => !right.has).map((right) => right.name);
  return (
    <details class="box">
      <summary title={lacks.length ? `lacks ${lacks.join(", ")}` : "a job has all of it for itself"}>
        <span class={`mark box-${level}`}>{words}</span>
      </summary>
      <dl class="facts small">
        {rights.map((right) => (
          <>
            <dt key={right.name}>{right.name}</dt>
            <dd dir="auto">{right.has ? "its own" : right.why}</dd>
          </>
        ))}
      </dl>
    </details>
  );
}

/** With minutes, what still runs there then goes to other nodes; without, it may end. */
function Drain(props: { drain: (body: { deadline_seconds?: number }) => void }) {
  const [open, setOpen] = useState(false);
  const [minutes, setMinutes] = useState("");
  if (!open) return <button onClick={() => setOpen(true)}>Drain …</button>;
  const submit = (event: Event) => {
    event.preventDefault();
    setOpen(false);
    props.drain(minutes === "" ? {} : { deadline_seconds: Math.round(Number(minutes) * 60) });
  };
  return (
    <form class="row" onSubmit={submit}>
      <label>
        No new work; what runs here moves on after{" "}
        <input
          type="number"
          min={0}
          max={1440}
          step="any"
          class="short"
          placeholder="never"
          value={minutes}
          onInput={(event) => setMinutes(event.currentTarget.value)}
        />{" "}
        minutes
      </label>
      <button>Drain</button>
      <button type="button" class="plain" onClick={() => setOpen(false)}>
        not now
      </button>
    </form>
  );
}

function Slot(props: {
  device: Device;
  job: ListedJob | undefined;
  busy: Busy | undefined;
  actions: readonly Action[];
}) {
  const { device, job, busy } = props;
  const known = device.job && !device.job.includes(" ");
  return (
    <li
      class={`slot ${device.state}`}
      title={`${device.id}: ${device.name}${device.memory_total_bytes ? `, ${bytes(device.memory_total_bytes)}` : ""}`}
    >
      <div class="row">
        <b>
          {device.name_in_fleet ? (
            <Link to={`/devices/${encodeURIComponent(device.name_in_fleet)}`} title={`History of ${device.label}`}>
              {device.label}
            </Link>
          ) : (
            device.label
          )}
        </b>
        <Menu label={`Actions on ${device.label}`} actions={props.actions}>
          ⋯
        </Menu>
      </div>
      <div class="what">
        {device.state !== "leased" ? (
          device.state
        ) : known ? (
          <Link to={`/jobs/${device.job}`} title={job?.name ?? device.job ?? ""}>
            <bdi>{job?.name ?? `job …${device.job?.slice(-8)}`}</bdi>
          </Link>
        ) : (
          device.job
        )}
      </div>
      {busy && (
        <div class="busy" title={busy.words}>
          <Spark lately={busy.lately} />
          <span class="muted ellipsis">{busy.words}</span>
        </div>
      )}
      {device.suspected && <div class="why suspected">{device.suspected}; check it, or set it apart</div>}
      {device.quarantine && (
        <div class="why" dir="auto">
          {device.quarantine}
          {device.quarantined_at ? ` (since ${clock(device.quarantined_at)})` : ""}
          {device.state === "leased" ? "; set apart when it is free" : ""}
        </div>
      )}
    </li>
  );
}

const SPARK = { width: 48, height: 14 } as const;

function Spark(props: { lately: readonly number[] }) {
  const { lately } = props;
  const x = (n: number) => (lately.length > 1 ? (n / (lately.length - 1)) * SPARK.width : 0);
  const points = lately.map(
    (value, n) => `${x(n).toFixed(1)},${(SPARK.height - 1 - value * (SPARK.height - 2)).toFixed(1)}`,
  );
  return (
    <svg class="spark" viewBox={`0 0 ${SPARK.width} ${SPARK.height}`} aria-hidden="true">
      <polyline points={points.join(" ")} />
    </svg>
  );
}

/** A job that measures each device of a node beside the others. */
function testOf(node: NodeView) {
  const devices = node.devices.filter((device) => device.state !== "quarantined").length;
  return {
    name: `test of ${node.id}`.slice(0, 200),
    pool: node.pool,
    labels: { test: "devices" },
    resources: { devices: Math.max(1, devices) },
    parallelism: { strategy: devices > 1 ? "ddp" : "single" },
    program: {
      kind: "recipe",
      model: { ref: "digits_cnn", args: { channels: 16 } },
      data: { ref: "digits", args: { split: "train" }, batch_size: 16 },
      loss: { ref: "cross_entropy" },
      optimizer: { ref: "sgd", args: { lr: 0.05 } },
      epochs: 2,
    },
  };
}
