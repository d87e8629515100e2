// The programs of the repository, to start from.

const FILES = import.meta.glob<string>("../../../examples/jobs/*.json", {
  query: "?raw",
  import: "default",
  eager: true,
});

/** Text of a spec, by its name. */
export const EXAMPLES: ReadonlyMap<string, string> = new Map(
  Object.entries(FILES)
    .map(([path, text]) => [path.replace(/^.*\/|\.json$/g, ""), text.trim()] as const)
    .sort(([a], [b]) => a.localeCompare(b)),
);

export const FIRST = "digits-dp3";
