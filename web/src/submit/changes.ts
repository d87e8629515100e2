// Fields of a spec by their dotted paths: those that a suggestion names, and setting them in a copy.

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type Change = readonly [path: string, value: Json];

const SETS = /\b([a-z_]+(?:\.[a-z_0-9]+)+) to ("[^"]*"|-?\d[\d,]*(?:\.\d+)?|true|false|\[[\d., ]*\])/g;

/** What a suggestion says to set: `set program.data.batch_size to 63 or 66` names one field, and its first value. */
export function changesOf(suggestion: string): Change[] {
  return [...suggestion.matchAll(SETS)].map(([, path, value]) => [
    path ?? "",
    JSON.parse((value ?? "").replace(/(?<=\d),(?=\d)/g, "")) as Json,
  ]);
}

/** A copy of a spec with a field set; what it stands in is made where it is missing. */
export function withChange(spec: Json, [path, value]: Change): Json {
  const [name, ...rest] = path.split(".");
  if (name === undefined || name === "") return value;
  if (Array.isArray(spec)) {
    const copy = [...spec];
    copy[Number(name)] = withChange(copy[Number(name)] ?? {}, [rest.join("."), value]);
    return copy;
  }
  const fields = spec !== null && typeof spec === "object" ? spec : {};
  return { ...fields, [name]: rest.length ? withChange(fields[name] ?? {}, [rest.join("."), value]) : value };
}

export const withChanges = (spec: Json, changes: readonly Change[]): Json => changes.reduce(withChange, spec);

/** The value of a field; undefined where there is none. */
export function valueAt(spec: Json, path: string): Json | undefined {
  let at: Json | undefined = spec;
  for (const name of path.split(".")) {
    if (at === null || typeof at !== "object") return undefined;
    at = Array.isArray(at) ? at[Number(name)] : at[name];
  }
  return at;
}

/** All leaves of a value by their dotted paths; empty objects and lists are leaves. */
export function leaves(value: Json, path = ""): [string, Json][] {
  if (value === null || typeof value !== "object" || !Object.keys(value).length) return [[path, value]];
  if (Array.isArray(value) && value.every((one) => one === null || typeof one !== "object")) return [[path, value]];
  return Object.entries(value).flatMap(([name, part]) => leaves(part, path ? `${path}.${name}` : name));
}
