import { useEffect, useState } from "preact/hooks";

import { get } from "../api";
import { bytes, clock, plural } from "../format";

interface File {
  path: string;
  bytes: number;
  modified_at: string;
}

const SHOWN = 200;

export function Files(props: { id: string; state: string }) {
  const [files, setFiles] = useState<File[] | null>(null);
  useEffect(() => {
    get<{ artifacts: File[] }>(`/v1/jobs/${props.id}/artifacts`).then((found) => setFiles(found.artifacts), () => setFiles([]));
  }, [props.id, props.state]);
  return (
    <>
      <h2>Files</h2>
      {files?.length === 0 && <p class="muted">None. A script keeps files in <code>job.output_dir()</code>.</p>}
      {files && files.length > 0 && (
        <div class="scroll" tabIndex={0} role="group" aria-label="Files"><table><tbody>
          {files.slice(0, SHOWN).map((file) => (
            <tr key={file.path}>
              <td class="name"><a href={`/v1/jobs/${props.id}/artifacts/${file.path.split("/").map(encodeURIComponent).join("/")}`} download><bdi>{file.path}</bdi></a></td>
              <td class="n">{bytes(file.bytes)}</td><td class="muted">{clock(file.modified_at)}</td>
            </tr>
          ))}
        </tbody></table></div>
      )}
      {files && files.length > SHOWN && <p class="muted">and {plural(files.length - SHOWN, "file")} more: <code>shardyard artifacts {props.id}</code></p>}
    </>
  );
}
