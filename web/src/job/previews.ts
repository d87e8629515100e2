// What can be shown of a file without opening it elsewhere: pictures, text, tables, and what a safetensors file has in it.

export type PreviewKind = "image" | "text" | "table" | "tensors";

const BY_ENDING: Record<string, PreviewKind> = {
  ...Object.fromEntries(["png", "jpg", "jpeg", "gif", "webp", "bmp"].map((ending) => [ending, "image" as const])),
  ...Object.fromEntries(
    ["txt", "log", "md", "json", "jsonl", "yaml", "yml", "toml", "py", "cfg", "ini", "sh"].map((ending) => [
      ending,
      "text" as const,
    ]),
  ),
  csv: "table",
  tsv: "table",
  safetensors: "tensors",
};

export const previewOf = (path: string): PreviewKind | null =>
  BY_ENDING[path.split(".").at(-1)?.toLowerCase() ?? ""] ?? null;

/** Rows of a CSV text, quotation marks taken off; a last line that is cut is left out. */
export function csvRows(text: string, separator: string, most: number): string[][] {
  const rows: string[][] = [];
  let row: string[] = [];
  let cell = "";
  let quoted = false;
  for (let at = 0; at < text.length && rows.length < most; at += 1) {
    const letter = text[at]!;
    if (quoted) {
      if (letter !== '"') cell += letter;
      else if (text[at + 1] === '"') {
        cell += '"';
        at += 1;
      } else quoted = false;
    } else if (letter === '"' && cell === "") quoted = true;
    else if (letter === separator) {
      row.push(cell);
      cell = "";
    } else if (letter === "\n") {
      rows.push([...row, cell.replace(/\r$/, "")]);
      row = [];
      cell = "";
    } else cell += letter;
  }
  return rows;
}

export interface Tensor {
  name: string;
  kind: string;
  shape: number[];
  bytes: number;
}

/** How long the header of a safetensors file is, by its first eight bytes; null where that cannot be. */
export function headerLength(start: ArrayBuffer): number | null {
  if (start.byteLength < 8) return null;
  const length = Number(new DataView(start).getBigUint64(0, true));
  return length > 0 && length <= MOST_HEADER ? length : null;
}

const MOST_HEADER = 8 * 1024 * 1024;

export function tensorsOf(header: string): { tensors: Tensor[]; notes: Record<string, string> } {
  const found = JSON.parse(header) as Record<
    string,
    { dtype?: string; shape?: number[]; data_offsets?: [number, number] }
  >;
  const tensors = Object.entries(found)
    .filter(([name]) => name !== "__metadata__")
    .map(([name, one]) => {
      const [from, to] = one.data_offsets ?? [0, 0];
      return { name, kind: one.dtype ?? "", shape: one.shape ?? [], bytes: to - from };
    });
  return { tensors, notes: (found["__metadata__"] ?? {}) as Record<string, string> };
}
