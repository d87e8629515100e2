// A button that opens a list of actions. The browser closes it: by Escape, or by a click elsewhere.

import type { ComponentChildren } from "preact";
import { useId, useRef } from "preact/hooks";

export interface Action {
  title: string;
  /** Where it leads, for what is an address. */
  href?: string;
  act?: () => void;
  risky?: boolean;
  disabled?: boolean;
}

const EDGE = 8;

/** `label` names the button for those who do not see it; `children` are what it shows. */
export function Menu(props: {
  label: string;
  actions: readonly Action[];
  class?: string;
  children: ComponentChildren;
}) {
  const list = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const id = useId();
  const items = () => [...(list.current?.querySelectorAll<HTMLElement>("[role=menuitem]:not(:disabled)") ?? [])];
  const toggled = (event: ToggleEvent) => {
    const open = event.newState === "open";
    button.current?.setAttribute("aria-expanded", String(open));
    if (!open) return;
    place(list.current!, button.current!);
    items()[0]?.focus();
  };
  const keyed = (event: KeyboardEvent) => {
    const all = items();
    const here = all.indexOf(document.activeElement as HTMLElement);
    const to = { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to == null) return;
    event.preventDefault();
    all.at(to % all.length)?.focus();
  };
  return (
    <>
      <button
        ref={button}
        type="button"
        class={props.class ?? "plain more-menu"}
        aria-label={props.label}
        aria-haspopup="menu"
        aria-expanded="false"
        popovertarget={id}
      >
        {props.children}
      </button>
      <div
        ref={list}
        id={id}
        class="menu"
        popover="auto"
        role="menu"
        aria-label={props.label}
        onToggle={toggled}
        onKeyDown={keyed}
      >
        {props.actions.map((action) => (
          <Item key={action.title} action={action} close={() => list.current?.hidePopover()} />
        ))}
      </div>
    </>
  );
}

function Item(props: { action: Action; close: () => void }) {
  const { action } = props;
  if (action.href) {
    return (
      <a role="menuitem" href={action.href} onClick={props.close}>
        {action.title}
      </a>
    );
  }
  return (
    <button
      type="button"
      role="menuitem"
      class={action.risky ? "risky" : ""}
      disabled={action.disabled ?? false}
      onClick={() => {
        props.close();
        action.act?.();
      }}
    >
      {action.title}
    </button>
  );
}

/** Below its button, or above it where there is no room, and on the page at any width. */
export function place(panel: HTMLElement, button: HTMLElement): void {
  const from = button.getBoundingClientRect();
  const { offsetHeight } = panel;
  const { clientWidth } = document.documentElement;
  const below = from.bottom + offsetHeight + EDGE < window.innerHeight;
  const atEnd = from.left > clientWidth / 2;
  panel.style.left = atEnd ? "auto" : `${Math.max(EDGE, from.left)}px`;
  panel.style.right = atEnd ? `${Math.max(EDGE, clientWidth - from.right)}px` : "auto";
  panel.style.top = `${below ? from.bottom + 2 : Math.max(EDGE, from.top - offsetHeight - 2)}px`;
}
