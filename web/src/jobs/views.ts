// Views of the table of jobs: an address that somebody wants to see again, by a name of theirs. They are kept in this
// browser; the address itself can be sent to anybody.

export interface View {
  name: string;
  query: string;
}

export const BUILT_IN: readonly View[] = [
  { name: "All jobs", query: "" },
  { name: "Running now", query: "state=running&columns=progress,rows_per_second,loss,devices,took,owner" },
  { name: "Failed", query: "state=failed" },
  { name: "By lowest loss", query: "state=succeeded&sort=loss&columns=loss,rows_per_second,devices,took,created" },
];

const KEPT = "shardyard.views";
export const MOST_VIEWS = 50;
const LONGEST_NAME = 60;

export interface Store {
  getItem: (key: string) => string | null;
  setItem: (key: string, value: string) => void;
}

export function savedViews(store: Store): View[] {
  try {
    const found: unknown = JSON.parse(store.getItem(KEPT) ?? "[]");
    return Array.isArray(found) ? found.filter(isView).slice(0, MOST_VIEWS) : [];
  } catch {
    return []; // somebody else wrote it
  }
}

/** The views with one more; another one of that name is replaced. */
export function saveView(store: Store, name: string, query: string): View[] {
  const short = name.trim().slice(0, LONGEST_NAME);
  const others = savedViews(store).filter((view) => view.name !== short);
  return put(store, short ? [...others, { name: short, query: query.replace(/^\?/, "") }] : others);
}

export const dropView = (store: Store, name: string): View[] =>
  put(
    store,
    savedViews(store).filter((view) => view.name !== name),
  );

function put(store: Store, views: View[]): View[] {
  const kept = views.slice(-MOST_VIEWS);
  try {
    store.setItem(KEPT, JSON.stringify(kept));
  } catch {
    // A browser that keeps nothing shows them until the page is left.
  }
  return kept;
}

function isView(found: unknown): found is View {
  const view = found as Partial<View> | null;
  return typeof view?.name === "string" && typeof view.query === "string";
}
