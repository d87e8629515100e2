import { useEffect, useState } from "preact/hooks";

import { type Artifact, type ArtifactList, getAsItIs, show } from "../api";
import { bytes, clock, plural } from "../format";
import { attempt, say } from "../toast";
import { Preview } from "./Preview";
import { previewOf } from "./previews";

const SHOWN = 200;
/** So much is put into one zip by a browser, which holds all of it. */
const MOST_BYTES = 256 * 1024 * 1024;
const MOST_FILES = 1000;
const NOTHING: ArtifactList = { attempt: 0, truncated: false, artifacts: [], total: 0, left_out: [] };
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
  const size = files.reduce((sum, file) => sum + file.bytes, 0);
  return (
    <>
      <div class="row">
        <h2 class="grow">
          Files {files.length > 0 && <small>{`${plural(files.length, "file")}, ${bytes(size)}`}</small>}
        </h2>
        {files.length > 1 && (
          <button class="plain" onClick={() => void attempt(() => saveAll(props.id, files, size))}>
            Download all
          </button>
        )}
      </div>
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

const urlOf = (id: string, path: string): string =>
  `/v1/jobs/${id}/artifacts/${path.split("/").map(encodeURIComponent).join("/")}`;

function Group(props: { id: string; kind: string; files: Artifact[] }) {
  const [open, setOpen] = useState("");
  if (props.files.length === 0) return null;
  const heading = HEADINGS[props.kind] ?? props.kind;
  return (
    <>
      <h3>{heading}</h3>
      <div class="scroll files" tabIndex={0} role="group" aria-label={heading}>
        <table>
          <tbody>
            {props.files.slice(0, SHOWN).map((file) => {
              const kind = previewOf(file.path);
              const shown = open === file.path;
              return [
                <tr key={file.path}>
                  <td class="name">
                    <a href={urlOf(props.id, file.path)} download>
                      <bdi>{show(file.path)}</bdi>
                    </a>
                  </td>
                  <td class="does">
                    {kind && (
                      <button
                        class="plain"
                        aria-expanded={shown}
                        aria-label={`${shown ? "Hide" : "Show"} ${show(file.path)}`}
                        onClick={() => setOpen(shown ? "" : file.path)}
                      >
                        {shown ? "hide" : "show"}
                      </button>
                    )}
                  </td>
                  <td class="n">{bytes(file.bytes)}</td>
                  <td class="muted">{clock(file.modified_at)}</td>
                </tr>,
                shown && kind && (
                  <tr key={`${file.path} shown`} class="shown-file">
                    <td colSpan={4}>
                      <Preview url={urlOf(props.id, file.path)} path={file.path} kind={kind} size={file.bytes} />
                    </td>
                  </tr>
                ),
              ];
            })}
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

/** All files as one zip, made by the browser. */
async function saveAll(id: string, files: readonly Artifact[], size: number): Promise<void> {
  if (size > MOST_BYTES || files.length > MOST_FILES) {
    throw new Error(
      `${plural(files.length, "file")} with ${bytes(size)} are too much for a browser: shardyard artifacts ${id}`,
    );
  }
  say(`Fetching ${plural(files.length, "file")} …`, "good");
  const { zipSync } = await import("fflate");
  const contents: Record<string, Uint8Array> = {};
  for (const file of files) {
    const answer = await fetch(urlOf(id, file.path), { credentials: "same-origin" });
    if (!answer.ok) throw new Error(`${show(file.path)} cannot be read: status ${answer.status}`);
    contents[file.path] = new Uint8Array(await answer.arrayBuffer());
  }
  const url = URL.createObjectURL(new Blob([zipSync(contents, { level: 1 }) as BlobPart], { type: "application/zip" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `${id.slice(-8)}.zip`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
  say("", "good");
}
