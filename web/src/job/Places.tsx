// The nodes of a job that runs on several of them, with its devices and ranks there.

import type { JobStatus } from "../api";
import { count, plural, runs } from "../format";

export function Places(props: { job: JobStatus }) {
  const { placement } = props.job;
  if (placement.length < 2) return null;
  const devices = placement.reduce((sum, place) => sum + place.devices.length, 0);
  return (
    <section class="panel">
      <h2>
        Nodes{" "}
        <small>
          {plural(devices, "device")} of {count(placement.length)} nodes; the first one leads
        </small>
      </h2>
      <div class="scroll" tabIndex={0} role="group" aria-label="Nodes of this job">
        <table class="places">
          <thead>
            <tr>
              <th scope="col">Node</th>
              <th scope="col">Devices</th>
              <th scope="col" class="n">
                Ranks
              </th>
            </tr>
          </thead>
          <tbody>
            {placement.map((place) => (
              <tr key={place.node}>
                <td>
                  <bdi>{place.node}</bdi>
                </td>
                <td>{runs(place.devices)}</td>
                <td class="n">{runs(place.ranks)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
