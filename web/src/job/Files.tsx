import { useEffect, useState } from "preact/hooks";

import { type Artifact, type ArtifactList, getAsItIs, show } from "../api";
import { bytes, clock, plural } from "../format";

const SHOWN = 200;
const NOTHING: ArtifactList = { attempt: 0, truncated: false, artifacts: [], left_out: [] };
const HEADINGS: Record<string, string> = {
  file: "Your files",
  checkpoint: "Checkpoints",
  profile: "Profiles",
  report: "Report",
};

export function Files(props: { id: string; state: string; profiles?: number }) {
  const [found, setFound] = useState<ArtifactList | null>(null);
  useEffect(() => {
    getAsItIs<ArtifactList>(`/v1/jobs/${props.id}/artifacts`).then(setFound, () => setFound(NOTHING));
  }, [props.id, props.state, props.profiles]);
  const files = found?.artifacts ?? [];
  const kinds = [...new Set([...Object.keys(HEADINGS), ...files.map((file) => file.kind)])];
  return (
    <>
      <h2>Files</h2>
      {found && !files.some((file) => file.kind === "file") && (
        <p class="muted">No files of your own. What a script writes into its working directory is kept when it ends.</p>
      )}
      {kinds.map((kind) => (
        <Group key={kind} id={props.id} kind={kind} files={files.filter((file) => file.kind === kind)} />
      ))}
      {found?.left_out?.map((group) => (
        <p key={group.reason} class="muted left-out">
          <bdi>{show(group.message)}</bdi>
        </p>
      ))}
    </>
  );
}

function Group(props: { id: string; kind: string; files: Artifact[] }) {
  if (props.files.length === 0) return null;
  const heading = HEADINGS[props.kind] ?? props.kind;
  return (
    <>
      <h3>{heading}</h3>
      <div class="scroll files" tabIndex={0} role="group" aria-label={heading}>
        <table>
          <tbody>
            {props.files.slice(0, SHOWN).map((file) => (
              <tr key={file.path}>
                <td class="name">
                  <a
                    href={`/v1/jobs/${props.id}/artifacts/${file.path.split("/").map(encodeURIComponent).join("/")}`}
                    download
                  >
                    <bdi>{show(file.path)}</bdi>
                  </a>
                </td>
                <td class="n">{bytes(file.bytes)}</td>
                <td class="muted">{clock(file.modified_at)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {props.files.length > SHOWN && (
        <p class="muted">
          and {plural(props.files.length - SHOWN, "file")} more: <code>shardyard artifacts {props.id}</code>
        </p>
      )}
    </>
  );
}
