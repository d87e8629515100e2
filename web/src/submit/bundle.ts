// Code that is dropped on the page: what of it is taken, and its upload as a bundle.

import { call, Problem } from "../api";
import { bytes, count } from "../format";

export interface Dropped {
  path: string;
  file: File;
}

export interface Selection<T extends { path: string }> {
  kept: T[];
  left: T[];
}

/** What is code of nobody, or somebody's secret: never sent. */
const LEFT_OUT: readonly RegExp[] = [
  /(?:^|\/)(?:\.git|\.hg|\.svn|__pycache__|\.venv|venv|node_modules|\.mypy_cache|\.ruff_cache|\.pytest_cache|\.ipynb_checkpoints|\.idea|\.vscode)\//,
  /(?:^|\/)(?:\.env(?:\..*)?|\.netrc|\.npmrc|\.pypirc|id_(?:rsa|ed25519|ecdsa)|admin\.token|\.DS_Store)$/,
  /\.(?:pyc|pyo|pem|key|p12|pfx|kdbx)$/,
];
const MOST_FILES = 2000;
const MOST_BYTES = 100 * 1024 * 1024;

export function selected<T extends { path: string }>(files: readonly T[]): Selection<T> {
  const isLeft = (one: T) => LEFT_OUT.some((pattern) => pattern.test(one.path));
  return { kept: files.filter((one) => !isLeft(one)), left: files.filter(isLeft) };
}

/** Where a script most likely begins: by its usual names, else the only one at the top. */
export function entrypointOf(paths: readonly string[]): string {
  const scripts = paths
    .filter((path) => path.endsWith(".py"))
    .sort((a, b) => a.split("/").length - b.split("/").length || a.localeCompare(b));
  const usual = ["train.py", "main.py", "run.py", "__main__.py"];
  return usual.map((name) => scripts.find((path) => path === name)).find(Boolean) ?? scripts[0] ?? "";
}

/** All files of what is dropped, by their paths below what was dropped, the name of a single folder left out. */
export async function droppedFiles(transfer: DataTransfer): Promise<Dropped[]> {
  const entries = [...transfer.items].flatMap((item) => item.webkitGetAsEntry() ?? []);
  const [only] = entries;
  if (entries.length === 1 && only?.isDirectory) return read(only as FileSystemDirectoryEntry, "");
  return (await Promise.all(entries.map((entry) => one(entry, "")))).flat();
}

async function one(entry: FileSystemEntry, within: string): Promise<Dropped[]> {
  if (entry.isDirectory) return read(entry as FileSystemDirectoryEntry, `${within}${entry.name}/`);
  const file = await new Promise<File>((take, fail) => (entry as FileSystemFileEntry).file(take, fail));
  return [{ path: within + entry.name, file }];
}

async function read(directory: FileSystemDirectoryEntry, within: string): Promise<Dropped[]> {
  if (!selected([{ path: within }]).kept.length) return [];
  const reader = directory.createReader();
  const found: Dropped[] = [];
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((take, fail) => reader.readEntries(take, fail));
    if (!some.length) return found;
    found.push(...(await Promise.all(some.map((entry) => one(entry, within)))).flat());
    if (found.length > MOST_FILES) throw new Problem(0, "too_large", tooMany(found.length));
  }
}

/** Files of an `<input type=file>`, for a folder without its own name. */
export const chosenFiles = (files: FileList): Dropped[] =>
  [...files].map((file) => ({ path: file.webkitRelativePath.split("/").slice(1).join("/") || file.name, file }));

/** Send files as a bundle; its id. */
export async function upload(files: readonly Dropped[]): Promise<string> {
  const size = files.reduce((sum, { file }) => sum + file.size, 0);
  if (files.length > MOST_FILES || size > MOST_BYTES) throw new Problem(0, "too_large", tooMany(files.length, size));
  const { zipSync } = await import("fflate");
  const contents = await Promise.all(
    [...files]
      .sort((a, b) => a.path.localeCompare(b.path))
      .map(async ({ path, file }) => [path, new Uint8Array(await file.arrayBuffer())] as const),
  );
  const zip = zipSync(Object.fromEntries(contents), { level: 6, mtime: EPOCH });
  const answer = await call<{ id: string }>("POST", "/v1/bundles", new Blob([zip as BlobPart]), {
    "Content-Type": "application/zip",
  });
  return answer.id;
}

/** The same files are the same bundle, whenever they are packed. */
const EPOCH = new Date(1980, 0, 1);

const tooMany = (files: number, size = 0): string =>
  `this is ${count(files)} files${size ? ` with ${bytes(size)}` : ""}, more than ${count(MOST_FILES)} files or ${bytes(MOST_BYTES)}: ` +
  "drop the folder of the code alone, or use `shardyard submit --script` in it";
