// All devices in one strip, a mark for each: what is free, taken, set apart or away, at a glance.

import { useState } from "preact/hooks";

import { type Device, get, type NodeList, type NodeView, type Pool, type PoolList } from "../api";
import { plural } from "../format";
import { useLooking } from "../looking";
import { Link } from "../router";

/** Marks that are drawn of a pool; of more devices the words are enough. */
const MOST = 256;

export function FleetStrip() {
  const [found] = useLooking(async () => {
    const [pools, nodes] = await Promise.all([get<PoolList>("/v1/pools"), get<NodeList>("/v1/nodes")]);
    return { pools: pools.pools, nodes: nodes.nodes };
  });
  if (!found?.pools.length) return null;
  return (
    <section class="fleet" aria-label="Devices of all pools">
      {found.pools.map((pool) => (
        <PoolStrip key={pool.name} pool={pool} nodes={found.nodes.filter((node) => node.pool === pool.name)} />
      ))}
    </section>
  );
}

function PoolStrip(props: { pool: Pool; nodes: NodeView[] }) {
  const { pool, nodes } = props;
  const [shown] = useState(MOST);
  const words = [
    `${pool.leased} of ${plural(pool.devices, "device")} in use`,
    pool.queued ? `${plural(pool.queued, "job")} wait${pool.queued === 1 ? "s" : ""}` : "",
    pool.quarantined ? `${pool.quarantined} set apart` : "",
    pool.live_nodes < pool.nodes ? `${plural(pool.nodes - pool.live_nodes, "node")} down` : "",
  ];
  let left = shown;
  return (
    <Link to="/nodes" class="fleet-pool" title={`Devices of pool ${pool.name}`}>
      <b>
        <bdi>{pool.name}</bdi>
      </b>
      <span class="fleet-marks" aria-hidden="true">
        {nodes.map((node) => {
          const devices = node.devices.slice(0, Math.max(0, left));
          left -= devices.length;
          return (
            <span key={node.id} class="fleet-node">
              {devices.map((device) => (
                <i key={device.device} class={standing(device, node)} />
              ))}
            </span>
          );
        })}
      </span>
      <span class="muted">{words.filter(Boolean).join(" · ")}</span>
    </Link>
  );
}

const standing = (device: Device, node: NodeView): string => (node.alive ? device.state : "offline");
