// What each device got and cost in numbers, and its peak memory as a bar: the output device's is longer.

import type { NodeMeasures, Rates, Report } from "../api";
import { bytes, count, flopRate, ms, number, percent } from "../format";
import { IDLE, OUTPUT, SLOW, slowDevice } from "../marks";

const RATES: [keyof Rates, string, (value: number | null | undefined) => string][] = [
  ["rows_per_second", "Rows/s", number],
  ["tokens_per_second", "Tokens/s", number],
  ["flop_per_second", "FLOP/s", flopRate],
  ["mfu", "MFU", percent],
];

/** What all devices do in a second: "10,324 rows/s, 2.1 TFLOP/s, 41 % MFU". */
function together(report: Report): string {
  const words = [
    report.rows_per_second != null && `${number(report.rows_per_second)} rows/s`,
    report.tokens_per_second != null && `${number(report.tokens_per_second)} tokens/s`,
    report.flop_per_second != null && flopRate(report.flop_per_second),
    report.mfu != null && `${percent(report.mfu)} MFU`,
  ];
  return words.filter(Boolean).join(", ");
}

/** What a node's devices got and waited for together: "6,400 rows (50 %), wall time 13 s, 2 % waiting for data". */
function nodeFacts(node: NodeMeasures): string {
  const part = (took: number | null | undefined) =>
    took != null && node.wall_ms ? percent(took / node.wall_ms) : null;
  const waited = part(node.data_wait_ms);
  const communicated = part(node.comm_ms);
  const words = [
    node.rows != null && `${count(node.rows)} rows (${percent(node.share)})`,
    node.wall_ms != null && `wall time ${ms(node.wall_ms)}`,
    waited && `${waited} waiting for data`,
    communicated && `${communicated} in communication`,
    node.slowest_device != null && node.devices.length > 1 && `slowest device ${node.slowest_device}`,
  ];
  return words.filter(Boolean).join(", ");
}

export function DeviceTable(props: { report: Report; outputDevice: number | null }) {
  const { report } = props;
  const slow = slowDevice(report);
  const skew = report.balance.output_device_memory_skew;
  const peaks = report.per_device.map((one) => one.memory_peak_bytes);
  const most = Math.max(...peaks.map((peak) => peak ?? 0), ...report.devices.map((one) => one.memory_total_bytes ?? 0));
  const measured = peaks.some((peak) => peak != null);
  const rates = RATES.filter(([field]) => report.per_device.some((one) => one[field] != null));
  const rated = together(report);
  const leased = new Map(report.devices.map((one) => [one.device, one]));
  const nodes = new Set(report.devices.map((one) => one.node));
  const ofNodes = new Map((report.per_node ?? []).map((one) => [one.node, nodeFacts(one)]));
  const columns = 6 + rates.length + Number(measured);
  return (
    <>
      <h2>
        Devices {rated && <small>{rated} together </small>}
        {skew != null && <small>the output device has {number(skew)} times the peak memory of the others</small>}
      </h2>
      <div class="scroll devices" tabIndex={0} role="group" aria-label="Devices in numbers">
        <table>
          <thead>
            <tr>
              <th scope="col">Device</th>
              <th class="n" scope="col">
                Rows
              </th>
              <th class="n" scope="col">
                Share
              </th>
              <th class="n" scope="col">
                Steps
              </th>
              <th class="n" scope="col">
                Idle
              </th>
              <th class="n" scope="col">
                ms a row
              </th>
              {rates.map(([field, title]) => (
                <th key={field} class="n" scope="col">
                  {title}
                </th>
              ))}
              {measured && <th scope="col">Peak memory</th>}
            </tr>
          </thead>
          <tbody>
            {report.per_device.map((one, n) => {
              const device = leased.get(one.device);
              const before = leased.get(report.per_device[n - 1]?.device ?? -1);
              return [
                nodes.size > 1 && device && device.node !== before?.node && (
                  <tr key={`of ${device.node}`} class="of-node">
                    <th colSpan={columns} scope="rowgroup">
                      <bdi>{device.node}</bdi>
                      {report.balance.slowest_node === device.node && (
                        <>
                          {" "}
                          <span class="mark slow">slowest node</span>
                        </>
                      )}
                      {ofNodes.has(device.node) && (
                        <>
                          {" "}
                          <small class="muted">{ofNodes.get(device.node)}</small>
                        </>
                      )}
                    </th>
                  </tr>
                ),
                <tr key={one.device}>
                  <td title={device?.name}>
                    {one.device}{" "}
                    <span class="muted">
                      {device && device.id.length <= 8 ? device.id : device?.name}
                      {device ? `, rank ${device.rank}` : ""}
                    </span>
                    {slow === one.device && (
                      <>
                        {" "}
                        <span class="mark slow">{SLOW}</span>
                      </>
                    )}
                    {props.outputDevice === one.device && (
                      <>
                        {" "}
                        <span class="mark output">{OUTPUT}</span>
                      </>
                    )}
                    {one.idle_steps > 0 && (
                      <>
                        {" "}
                        <span class="mark idles">{IDLE}</span>
                      </>
                    )}
                  </td>
                  <td class="n">{count(one.rows)}</td>
                  <td class="n">{percent(one.share)}</td>
                  <td class="n">{count(one.steps)}</td>
                  <td class="n">{one.idle_steps ? <b>{count(one.idle_steps)}</b> : 0}</td>
                  <td class="n">{number(one.ms_per_row)}</td>
                  {rates.map(([field, , show]) => (
                    <td key={field} class="n">
                      {show(one[field])}
                    </td>
                  ))}
                  {measured && (
                    <td>
                      <progress
                        max={most}
                        value={one.memory_peak_bytes ?? 0}
                        aria-label={`peak memory of device ${one.device}: ${bytes(one.memory_peak_bytes)}`}
                      />
                      <span class="small">
                        {bytes(one.memory_peak_bytes)}
                        {device?.memory_total_bytes ? (
                          <span class="muted"> of {bytes(device.memory_total_bytes)}</span>
                        ) : null}
                      </span>
                    </td>
                  )}
                </tr>,
              ];
            })}
          </tbody>
        </table>
      </div>
      {!measured && report.per_device.length > 0 && (
        <p class="muted small">Peak memory: {report.notes["per_device.memory_peak_bytes"] ?? "not measured"}.</p>
      )}
    </>
  );
}
