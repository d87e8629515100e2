// Where we are: the address is the state, so that any view can be sent to somebody.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";

export const place = signal(new URL(window.location.href));

window.addEventListener("popstate", () => {
  place.value = new URL(window.location.href);
});

export function go(to: string, how: "push" | "replace" = "push"): void {
  window.history[how === "push" ? "pushState" : "replaceState"](null, "", to);
  place.value = new URL(window.location.href);
  if (how === "push") window.scrollTo(0, 0);
}

/** The address with some parameters of its query set, and those that are empty taken out. */
export function withQuery(changes: Record<string, string>): string {
  const url = new URL(place.value);
  for (const [name, value] of Object.entries(changes)) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  return url.pathname + url.search;
}

export function Link(props: {
  to: string;
  class?: string;
  current?: boolean;
  title?: string;
  children: ComponentChildren;
}) {
  const follow = (event: MouseEvent) => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(props.to);
  };
  return (
    <a
      href={props.to}
      class={props.class}
      title={props.title}
      aria-current={props.current ? "page" : undefined}
      onClick={follow}
    >
      {props.children}
    </a>
  );
}
