import { useEffect, useState } from "preact/hooks";

import { show } from "../api";
import { bytes, count, plural, shape } from "../format";
import { csvRows, headerLength, type PreviewKind, type Tensor, tensorsOf } from "./previews";

/** So much of a text is read. */
const TEXT_BYTES = 64 * 1024;
const IMAGE_BYTES = 20 * 1024 * 1024;
const ROWS = 51;
const TENSORS = 200;

type Found =
  | { kind: "image"; url: string }
  | { kind: "text"; text: string; whole: boolean }
  | { kind: "table"; rows: string[][] }
  | { kind: "tensors"; tensors: Tensor[]; notes: Record<string, string> };

/** The file at a path, shown below its row. */
export function Preview(props: { url: string; path: string; kind: PreviewKind; size: number }) {
  const [found, setFound] = useState<Found | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let url = "";
    let left = false;
    read(props.url, props.path, props.kind, props.size).then(
      (answer) => {
        url = answer.kind === "image" ? answer.url : "";
        if (left && url) URL.revokeObjectURL(url);
        else setFound(answer);
      },
      (error: unknown) => setProblem(error instanceof Error ? error.message : String(error)),
    );
    return () => {
      left = true;
      if (url) URL.revokeObjectURL(url);
    };
  }, [props.url]);
  if (problem) return <p class="bad">{problem}</p>;
  if (!found) return <p class="muted">Reading …</p>;
  switch (found.kind) {
    case "image":
      return <img class="preview" src={found.url} alt={show(props.path)} />;
    case "text":
      return (
        <>
          <pre class="preview" tabIndex={0}>
            {show(found.text)}
          </pre>
          {!found.whole && <p class="muted small">the first {bytes(TEXT_BYTES)}</p>}
        </>
      );
    case "table":
      return <TableOf rows={found.rows} />;
    case "tensors":
      return <Tensors tensors={found.tensors} notes={found.notes} />;
  }
}

function TableOf(props: { rows: string[][] }) {
  const [head, ...rows] = props.rows;
  return (
    <div class="scroll preview" tabIndex={0} role="group" aria-label="Rows of the table">
      <table>
        <thead>
          <tr>
            {head?.map((cell, n) => (
              <th key={n} scope="col">
                {show(cell)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, n) => (
            <tr key={n}>
              {row.map((cell, column) => (
                <td key={column} class={Number.isFinite(Number(cell)) ? "n" : ""}>
                  <bdi>{show(cell)}</bdi>
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Tensors(props: { tensors: Tensor[]; notes: Record<string, string> }) {
  const { tensors } = props;
  const numbers = tensors.reduce((sum, one) => sum + one.shape.reduce((product, side) => product * side, 1), 0);
  return (
    <div class="scroll preview" tabIndex={0} role="group" aria-label="Tensors of the file">
      <p class="muted">
        {plural(tensors.length, "tensor")}, {plural(numbers, "number")}
        {Object.entries(props.notes).map(([name, value]) => ` · ${show(name)}: ${show(String(value))}`)}
      </p>
      <table>
        <tbody>
          {tensors.slice(0, TENSORS).map((one) => (
            <tr key={one.name}>
              <td class="mono">
                <bdi>{show(one.name)}</bdi>
              </td>
              <td>{one.kind}</td>
              <td>{shape(one.shape)}</td>
              <td class="n">{bytes(one.bytes)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {tensors.length > TENSORS && <p class="muted">and {count(tensors.length - TENSORS)} more</p>}
    </div>
  );
}

async function read(url: string, path: string, kind: PreviewKind, size: number): Promise<Found> {
  if (kind === "image") {
    if (size > IMAGE_BYTES) throw new Error(`a picture of ${bytes(size)} is not shown here; download it`);
    return { kind, url: URL.createObjectURL(await (await part(url)).blob()) };
  }
  if (kind === "tensors") {
    const length = headerLength(await (await part(url, 0, 8)).arrayBuffer());
    if (length == null) throw new Error("this is no safetensors file");
    return { kind, ...tensorsOf(await (await part(url, 8, length)).text()) };
  }
  const text = size > 0 ? await (await part(url, 0, TEXT_BYTES)).text() : "";
  if (kind === "text") return { kind, text, whole: size <= TEXT_BYTES };
  const ended = size <= TEXT_BYTES && !text.endsWith("\n") ? `${text}\n` : text;
  return { kind, rows: csvRows(ended, path.toLowerCase().endsWith(".tsv") ? "\t" : ",", ROWS) };
}

async function part(url: string, from?: number, length = 0): Promise<Response> {
  const headers: HeadersInit = from === undefined ? {} : { Range: `bytes=${from}-${from + length - 1}` };
  const answer = await fetch(url, { headers, credentials: "same-origin" });
  if (!answer.ok) throw new Error(`the file cannot be read: status ${answer.status}`);
  return answer;
}
