// Which columns the table has: those that are there at first, and any metric and field of a spec that jobs have.

import { useEffect, useRef, useState } from "preact/hooks";

import { get, type JobColumn, type JobColumnList } from "../api";
import { place } from "../parts/Menu";
import { OWN_NAMES } from "./columns";

const SHOWN = 60;
const MOST = 200;

export function ChooseColumns(props: { columns: readonly string[]; set: (columns: readonly string[]) => void }) {
  const { columns } = props;
  const panel = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const [found, setFound] = useState<JobColumn[] | null>(null);
  const [open, setOpen] = useState(false);
  const [search, setSearch] = useState("");
  useEffect(() => {
    if (open)
      get<JobColumnList>("/v1/jobs/columns").then(
        (answer) => setFound(answer.columns),
        () => setFound([]),
      );
  }, [open]);
  const others = (found ?? []).map((column) => column.name).filter((name) => !OWN_NAMES.includes(name));
  const all = [...new Set([...columns, ...OWN_NAMES, ...others])];
  const words = search.trim().toLowerCase();
  const wanted = all.filter((name) => name.toLowerCase().includes(words));
  const toggle = (name: string) =>
    props.set(columns.includes(name) ? columns.filter((one) => one !== name) : [...columns, name].slice(0, MOST));
  const addAll = () => props.set([...new Set([...columns, ...wanted])].slice(0, MOST));
  return (
    <>
      <button ref={button} type="button" popovertarget="columns" aria-haspopup="dialog">
        Columns
      </button>
      <div
        ref={panel}
        id="columns"
        class="menu columns-menu"
        popover="auto"
        role="dialog"
        aria-label="Columns"
        onToggle={(event) => {
          setOpen(event.newState === "open");
          if (event.newState === "open") place(panel.current!, button.current!);
        }}
      >
        <input
          type="search"
          aria-label="Find a column"
          placeholder="accuracy, lr, batch_size"
          value={search}
          onInput={(event) => setSearch(event.currentTarget.value)}
        />
        <ul>
          {wanted.slice(0, SHOWN).map((name) => (
            <li key={name}>
              <label>
                <input type="checkbox" checked={columns.includes(name)} onChange={() => toggle(name)} /> {name}
              </label>
            </li>
          ))}
        </ul>
        {found === null && open && <p class="muted">Looking …</p>}
        {wanted.length > SHOWN && <p class="muted">{wanted.length - SHOWN} more: say more of the name</p>}
        <div class="row">
          {words && wanted.length > 1 && (
            <button type="button" onClick={addAll}>
              Show all {wanted.length}
            </button>
          )}
          <button type="button" onClick={() => props.set([])}>
            As at first
          </button>
        </div>
      </div>
    </>
  );
}
