import { useEffect, useState } from "preact/hooks";

import { type Device, type NodeView, type Pool, Problem, call, follow, get, may, me } from "../api";
import { bytes, plural } from "../format";
import { Link } from "../router";
import { attempt } from "../toast";

const LOOK_MS = 5000;

export function NodesPage() {
  const [pools, setPools] = useState<Pool[] | null>(null);
  const [nodes, setNodes] = useState<NodeView[]>([]);
  const [problem, setProblem] = useState("");
  const look = async () => {
    try {
      const [found, fleet] = await Promise.all([get<{ pools: Pool[] }>("/v1/pools"), get<{ nodes: NodeView[] }>("/v1/nodes")]);
      setPools(found.pools);
      setNodes(fleet.nodes);
      setProblem("");
    } catch (error) {
      setProblem(error instanceof Problem ? error.message : String(error));
    }
  };
  useEffect(() => {
    void look();
    const timer = setInterval(() => document.visibilityState === "visible" && void look(), LOOK_MS);
    const stop = follow("/v1/events", { fleet: () => void look() });
    return () => {
      clearInterval(timer);
      stop();
    };
  }, []);
  return (
    <>
      <div class="row head"><h1>Devices</h1></div>
      {problem && <div class="notice bad" role="alert">{problem}</div>}
      {pools?.length === 0 && <div class="notice">No node has registered yet. On the machine with the devices: <code>shardyard worker</code></div>}
      {pools?.map((pool) => (
        <section key={pool.name} class="panel pool">
          <div class="row">
            <h2>{pool.name}</h2>
            <span class="muted">
              {pool.free} of {plural(pool.devices, "device")} free{pool.quarantined ? ` · ${pool.quarantined} in quarantine` : ""} · {pool.live_nodes} of {plural(pool.nodes, "node")} alive · {pool.queued ? `${plural(pool.queued, "job")} wait` : "nothing waits"}
            </span>
          </div>
          <progress max={Math.max(pool.devices, 1)} value={pool.leased} aria-label={`${pool.leased} of ${pool.devices} devices leased`} />
          {nodes.filter((node) => node.pool === pool.name).map((node) => <NodePart key={node.id} node={node} look={look} />)}
        </section>
      ))}
    </>
  );
}

function NodePart(props: { node: NodeView; look: () => Promise<void> }) {
  const { node } = props;
  const standing = !node.alive ? "down" : node.stopping ? "stopping" : node.draining ? "draining: no new work" : "takes work";
  const operator = may("admin") && me.value?.operator;
  const drain = (method: "POST" | "DELETE") => () =>
    attempt(async () => {
      await call(method, `/v1/nodes/${encodeURIComponent(node.id)}/drain`);
      await props.look();
    });
  return (
    <div class="node">
      <div class="row">
        <b><bdi>{node.id}</bdi></b><span class="muted">{standing} · {plural(node.cores, "core")} · version {node.version}</span>
        {operator && (node.draining ? <button onClick={drain("DELETE")}>Take work again</button> : <button onClick={drain("POST")}>Drain</button>)}
      </div>
      <div class="slots">{node.devices.map((device) => <Slot key={device.device} device={device} />)}</div>
    </div>
  );
}

function Slot(props: { device: Device }) {
  const { device } = props;
  const id = device.job?.includes(" ") ? null : device.job;
  return (
    <div class={`slot ${device.state}`} title={`${device.id}: ${device.name}${device.memory_total_bytes ? `, ${bytes(device.memory_total_bytes)}` : ""}`}>
      <b>{device.label}</b>
      <div class="what">
        {device.state === "leased" ? (id ? <Link to={`/jobs/${id}`}>job {id.slice(0, 13)}</Link> : device.job) : device.state}
      </div>
      {device.quarantine && <div class="muted" dir="auto">{device.quarantine}</div>}
    </div>
  );
}
