// Runs that are compared, and what tells their specs apart.

import { type Json, leaves } from "../submit/changes";

/** Runs that one page compares: as many as can be told apart by colour. */
export const MOST_COMPARED = 8;

/** Ids of an address: `jobs=a,b,c`, or `a=` and `b=` as links of earlier versions have them. */
export function runsOf(query: URLSearchParams): string[] {
  const ids = [...(query.get("jobs") ?? "").split(","), query.get("a") ?? "", query.get("b") ?? ""];
  return [...new Set(ids.map((id) => id.trim()).filter(Boolean))].slice(0, MOST_COMPARED);
}

/** Fields in which specs differ, with the value of each spec; undefined where it has none. Names are no difference. */
export function differences(specs: readonly Json[]): [path: string, values: (Json | undefined)[]][] {
  const flat = specs.map((spec) => new Map(leaves(spec)));
  const paths = [...new Set(flat.flatMap((fields) => [...fields.keys()]))].filter((path) => path !== "name");
  return paths
    .map((path) => [path, flat.map((fields) => fields.get(path))] as [string, (Json | undefined)[]])
    .filter(([, values]) => new Set(values.map((value) => JSON.stringify(value))).size > 1);
}
