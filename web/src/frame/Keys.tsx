// Keys that work on every page, and the list of them.

import { useEffect, useRef } from "preact/hooks";

import { go } from "../router";

const PAGES: Record<string, string> = {
  j: "/",
  s: "/submit",
  c: "/compare",
  r: "/groups",
  d: "/nodes",
  q: "/quota",
  w: "/webhooks",
};
/** The second key of a pair comes so soon. */
const PAIR_MS = 1200;

const KEYS: readonly [string, string][] = [
  ["/", "moves to the search field"],
  ["j  k", "go down and up in the list of jobs"],
  ["x", "chooses the job that you are at"],
  ["Enter", "opens it"],
  ["g then j, s, c, r, d, q, w", "go to Jobs, Submit, Compare, Groups, Devices, Quota, Webhooks"],
  ["Ctrl-Enter", "submits the spec that you write"],
  ["Ctrl-Space", "shows what may stand here in a spec"],
  ["Esc", "closes menus"],
  ["?", "shows this list"],
];

export function Keys() {
  const dialog = useRef<HTMLDialogElement>(null);
  const went = useRef(0);
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || isWriting(event.target)) return;
      if (performance.now() - went.current < PAIR_MS && PAGES[event.key]) {
        went.current = 0;
        event.preventDefault();
        return go(PAGES[event.key]!);
      }
      went.current = event.key === "g" ? performance.now() : 0;
      const search = document.querySelector<HTMLInputElement>("#search, #log-search");
      if (event.key === "?") dialog.current?.showModal();
      else if (event.key === "/" && search) {
        event.preventDefault();
        search.focus();
      } else if (event.key === "j" || event.key === "k") moveInList(event.key === "j" ? 1 : -1);
      else if (event.key === "x")
        document.activeElement?.closest("tr")?.querySelector<HTMLElement>("input[type=checkbox]")?.click();
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, []);
  return (
    <>
      <button
        class="plain"
        aria-label="Keys and documents"
        title="Keys and documents ( ? )"
        onClick={() => dialog.current?.showModal()}
      >
        ?
      </button>
      <dialog ref={dialog} class="keys" aria-labelledby="keys-title" closedby="any">
        <h2 id="keys-title">Keys</h2>
        <dl class="facts">
          {KEYS.map(([keys, does]) => [
            <dt key={keys}>
              <kbd>{keys}</kbd>
            </dt>,
            <dd key={does}>{does}</dd>,
          ])}
        </dl>
        <p>
          <a href="/help/" target="_blank" rel="noopener">
            The documents
          </a>{" "}
          ·{" "}
          <a href="/docs" target="_blank" rel="noopener">
            The HTTP API
          </a>{" "}
          · <a href="/openapi.json">its OpenAPI document</a> · in a terminal: <code>shardyard --help</code>
        </p>
        <form method="dialog">
          <button>Close</button>
        </form>
      </dialog>
    </>
  );
}

const isWriting = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement &&
  (target.isContentEditable || /^(TEXTAREA|SELECT)$/.test(target.tagName) || isText(target));

const isText = (target: HTMLElement) =>
  target instanceof HTMLInputElement && !["checkbox", "radio", "button", "file"].includes(target.type);

/** Focus the next job of the list, or the one before. */
function moveInList(by: number): void {
  const links = [...document.querySelectorAll<HTMLElement>("table.jobs a.name")];
  const here = links.findIndex((link) => link.closest("tr")?.contains(document.activeElement));
  const next = links[here < 0 ? 0 : Math.min(Math.max(here + by, 0), links.length - 1)];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}
