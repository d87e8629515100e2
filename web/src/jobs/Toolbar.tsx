// Above the table: filters, counts by state, views, and how it looks. All of it is in the address.

import { useEffect, useState } from "preact/hooks";

import { STATES } from "../api";
import { count } from "../format";
import { Menu } from "../parts/Menu";
import { go, Link, place, withQuery } from "../router";
import { BUILT_IN, dropView, savedViews, saveView, type View } from "./views";

/** After the last key in a field. */
const REST_MS = 300;

/** How many jobs there are in each state, each a link to those. */
export function StateChips(props: { counts: Readonly<Record<string, number>>; state: string; filtered: boolean }) {
  const { counts, state } = props;
  const all = Object.values(counts).reduce((sum, one) => sum + one, 0);
  const chip = (name: string, title: string, amount: number | undefined) => (
    <Link
      key={name}
      to={withQuery({ state: name })}
      class={`chip state-chip ${name ? `state ${name} still` : ""}`}
      current={state === name}
    >
      {title} {!props.filtered && amount != null && <span class="muted">{count(amount)}</span>}
    </Link>
  );
  return (
    <nav class="chips" aria-label="Jobs by state">
      {chip("", "all", Object.keys(counts).length ? all : undefined)}
      {STATES.map((name) => chip(name, name, counts[name]))}
    </nav>
  );
}

/** A field whose text goes into the address when its writer rests. */
export function TextFilter(props: { name: string; title: string; size: number; hint: string }) {
  const given = place.value.searchParams.get(props.name) ?? "";
  const [text, setText] = useState(given);
  useEffect(() => setText(given), [given]);
  useEffect(() => {
    if (text.trim() === given) return;
    const timer = setTimeout(() => go(withQuery({ [props.name]: text.trim() }), "replace"), REST_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <label>
      {props.title}{" "}
      <input
        id={props.name}
        type="search"
        size={props.size}
        maxLength={200}
        placeholder={props.hint}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
    </label>
  );
}

export function Views() {
  const [own, setOwn] = useState<View[]>(() => savedViews(localStorage));
  const query = place.value.search.replace(/^\?/, "");
  const shown = [...own, ...BUILT_IN].find((view) => view.query === query);
  const isOwn = own.some((view) => view === shown);
  const save = () => {
    const name = window.prompt("A name for what you see now: its filters, columns and order", "");
    if (name) setOwn(saveView(localStorage, name, query));
  };
  return (
    <Menu
      class=""
      label="Views"
      actions={[
        ...[...BUILT_IN, ...own].map((view) => ({
          title: view.name,
          act: () => go(view.query ? `/?${view.query}` : "/"),
        })),
        { title: "Save this view …", act: save },
        ...(shown && isOwn
          ? [{ title: `Forget “${shown.name}”`, risky: true, act: () => setOwn(dropView(localStorage, shown.name)) }]
          : []),
      ]}
    >
      {shown ? shown.name : "Views"} ▾
    </Menu>
  );
}
