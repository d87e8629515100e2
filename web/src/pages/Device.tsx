// The history of a device: how fast it was compared with its peers, attempt by attempt, and how these ended.

import { useEffect, useState } from "preact/hooks";

import { type DeviceHistory, type DeviceHistoryLine, get, Problem } from "../api";
import { clock, duration, NONE, number } from "../format";
import { Link } from "../router";

const LOOK_MS = 5000;

export function DevicePage(props: { id: string }) {
  const [history, setHistory] = useState<DeviceHistory | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let left = false;
    const look = async () => {
      try {
        const found = await get<DeviceHistory>(`/v1/devices/${encodeURIComponent(props.id)}/history`);
        if (left) return;
        setHistory(found);
        setProblem("");
      } catch (error) {
        if (!left) setProblem(error instanceof Problem ? error.message : String(error));
      }
    };
    void look();
    const timer = setInterval(() => !document.hidden && void look(), LOOK_MS);
    return () => {
      left = true;
      clearInterval(timer);
    };
  }, [props.id]);
  const title = history?.node ? `${history.label} of ${history.node}` : props.id;
  useEffect(() => {
    document.title = `${title}: Shardyard`;
  }, [title]);
  const compared = history?.lines.filter((line) => line.relative_ms_per_row != null).reverse() ?? [];
  return (
    <>
      <div class="row head">
        <h1>
          <bdi>{title}</bdi>
        </h1>
        <span class="muted">
          {history && [history.name, history.state || "on no node at present"].filter(Boolean).join(", ")}
        </span>
        <Link to="/nodes">all devices</Link>
      </div>
      {problem && (
        <div class="notice bad" role="alert">
          {problem}
        </div>
      )}
      {history?.suspected && (
        <div class="notice warning">
          This device was {history.suspected}. Check its clock, its temperature and its errors, or set it apart on the
          page of all devices.
        </div>
      )}
      {history?.lines.length === 0 && <div class="notice">No attempt has recorded anything about this device yet.</div>}
      {history && history.lines.length > 0 && (
        <section class="panel">
          <h2>
            Time for a row beside its peers{" "}
            <small>1 is the median of the attempt's other devices of the same kind; less is faster</small>
          </h2>
          {compared.length > 0 ? (
            <Chart lines={compared} />
          ) : (
            <p class="muted">It has not run beside peers yet, or their times are not known.</p>
          )}
          <Lines lines={history.lines} />
        </section>
      )}
    </>
  );
}

const WIDTH = 900;
const HEIGHT = 150;
const LEFT = 40;
const BOTTOM = 20;
const TOP = 8;
const EDGE = 12;

/** A dot for each attempt, the oldest at the left; ratios on a scale on which half and double are equally far from 1. */
function Chart(props: { lines: DeviceHistoryLine[] }) {
  const { lines } = props;
  const reach = Math.max(Math.log2(1.25), ...lines.map((line) => Math.abs(Math.log2(line.relative_ms_per_row!)))) * 1.1;
  const y = (ratio: number) => TOP + ((reach - Math.log2(ratio)) / (2 * reach)) * (HEIGHT - TOP - BOTTOM);
  const x = (n: number) =>
    LEFT + EDGE + (lines.length > 1 ? (n / (lines.length - 1)) * (WIDTH - LEFT - 2 * EDGE) : (WIDTH - LEFT) / 2);
  const edge = 2 ** (reach / 1.1);
  const slow = lines.filter((line) => line.slow).length;
  return (
    <svg
      class="history-chart"
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      role="img"
      aria-label={`Time for a row beside its peers in ${lines.length} attempts; slow in ${slow}`}
    >
      {[1 / edge, 1, edge].map((ratio) => (
        <g key={ratio}>
          <line x1={LEFT} x2={WIDTH} y1={y(ratio)} y2={y(ratio)} class={ratio === 1 ? "even" : ""} />
          <text x={LEFT - 6} y={y(ratio) + 4} text-anchor="end">
            {ratio.toFixed(2)}
          </text>
        </g>
      ))}
      {lines.map((line, n) => (
        <circle
          key={`${line.at} ${line.job}`}
          cx={x(n)}
          cy={y(line.relative_ms_per_row!)}
          r={line.slow || line.error ? 5 : 3.5}
          class={line.error ? "fault" : line.slow ? "slow" : ""}
        >
          <title>{`${clock(line.at)}: ${number(line.relative_ms_per_row)} times its peers' time${line.slow ? ", slow" : ""}${line.error ? `, ${line.error}` : ""}`}</title>
        </circle>
      ))}
      <text x={LEFT + EDGE} y={HEIGHT - 4}>
        {clock(lines[0]?.at ?? null)}
      </text>
      {lines.length > 1 && (
        <text x={WIDTH - EDGE} y={HEIGHT - 4} text-anchor="end">
          {clock(lines.at(-1)?.at ?? null)}
        </text>
      )}
    </svg>
  );
}

function Lines(props: { lines: DeviceHistoryLine[] }) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Attempts on this device">
      <table>
        <thead>
          <tr>
            <th scope="col">When</th>
            <th scope="col">Job</th>
            <th class="n" scope="col">
              In use
            </th>
            <th class="n" scope="col">
              Peers
            </th>
            <th class="n" scope="col">
              ms a row
            </th>
            <th class="n" scope="col">
              Beside peers
            </th>
            <th scope="col">Ended</th>
          </tr>
        </thead>
        <tbody>
          {props.lines.map((line) =>
            line.event === "attempt" ? (
              <tr key={`${line.at} ${line.job} ${line.attempt}`}>
                <td>{clock(line.at)}</td>
                <td>
                  {line.job && !line.job.includes(" ") ? (
                    <Link to={`/jobs/${line.job}`}>{line.job.slice(0, 13)}</Link>
                  ) : (
                    line.job
                  )}
                  {line.attempt && line.attempt > 1 ? <span class="muted"> attempt {line.attempt}</span> : null}
                </td>
                <td class="n">{duration(line.hours * 3600)}</td>
                <td class="n">{line.peers}</td>
                <td class="n">{number(line.ms_per_row)}</td>
                <td class="n">
                  {line.slow && (
                    <>
                      <span class="mark slow">slow</span>{" "}
                    </>
                  )}
                  {line.relative_ms_per_row == null ? NONE : line.relative_ms_per_row.toFixed(2)}
                </td>
                <td>
                  {(line.reason ?? "").replaceAll("_", " ")}
                  {line.error && (
                    <div class="why" dir="auto">
                      {line.error}
                    </div>
                  )}
                </td>
              </tr>
            ) : (
              <tr key={`${line.at} ${line.event}`}>
                <td>{clock(line.at)}</td>
                <td colSpan={6}>
                  <b>{line.event === "quarantined" ? "Put into quarantine" : "Released from quarantine"}</b> by the{" "}
                  {line.by === "operator" ? "operator" : "service"}
                  {line.quarantine && (
                    <span class="muted" dir="auto">
                      : {line.quarantine}
                    </span>
                  )}
                </td>
              </tr>
            ),
          )}
        </tbody>
      </table>
    </div>
  );
}
