// A spec as something to paste elsewhere: a request, a command, a program.

import type { Json } from "./changes";

const STEP = "    ";

export function asCurl(spec: Json, origin: string): string {
  return [
    `curl ${quoted(`${origin}/v1/jobs`)} \\`,
    '  -H "Authorization: Bearer $SHARDYARD_TOKEN" \\',
    "  -H 'Content-Type: application/json' \\",
    `  -d ${quoted(JSON.stringify(spec, null, 2))}`,
  ].join("\n");
}

export function asCommand(spec: Json): string {
  const text = JSON.stringify(spec, null, 2);
  let mark = "SPEC";
  while (text.split("\n").includes(mark)) mark += "_";
  return `shardyard submit - --watch <<'${mark}'\n${text}\n${mark}`;
}

export function asPython(spec: Json): string {
  return `from shardyard import Client\n\nspec = ${literal(spec, "")}\njob = Client().submit(spec).wait()\nprint(job.state)`;
}

/** Text for a shell, as it is. */
const quoted = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`;

function literal(value: Json, indent: string): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value); // such text and numbers are Python's as well
  const inner = indent + STEP;
  const parts = Array.isArray(value)
    ? value.map((part) => literal(part, inner))
    : Object.entries(value).map(([name, part]) => `${JSON.stringify(name)}: ${literal(part, inner)}`);
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (!parts.length) return open + close;
  const line = open + parts.join(", ") + close;
  if (line.length + indent.length <= 60 && !line.includes("\n")) return line;
  return `${open}\n${parts.map((part) => `${inner}${part},\n`).join("")}${indent}${close}`;
}
