import { Component } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import type { LogLine } from "../api";
import { clock, count, plural } from "../format";
import { levelOf } from "./levels";
import { around, earlier, grown, type Lines, later, newest, read, type Source } from "./lines";
import { isFilter, useMatches, type Wanted } from "./matches";
import type { Feed } from "./watch";

/** Where to go: to the end of all logs, or to a step or line of all of them or of one. */
export type Target = { to: "end" } | { to: "step" | "line"; number: number; device?: number };

/** So near to its top or end, a list reads on. */
const NEAR = 200;
const AT_END = 30;

interface Props {
  source: Source;
  wanted: Wanted;
  target: Target;
  feed: Feed;
  running: boolean;
  show: (seq: number) => void;
}

export function LogPane(props: Props) {
  const { source, wanted, target, feed } = props;
  const search = isFilter(wanted);
  const [held, setHeld] = useState<Lines>({ lines: [], atEnd: false, atStart: false, seen: 0 });
  const [marked, setMarked] = useState(0);
  const [words, setWords] = useState("");
  const list = useRef<HTMLOListElement>(null);
  const follows = useRef(true);
  const busy = useRef(false);
  const visits = useRef(0);
  const known = useRef(held);
  known.current = held;

  /** One read at a time: what a scroll asks for while another is on its way is asked for by the next scroll. What was
   * asked for before somebody went elsewhere is not shown any more. */
  const put = async (find: () => Promise<Lines>, after?: () => void) => {
    if (busy.current) return;
    busy.current = true;
    const visited = visits.current;
    try {
      const lines = await find();
      if (visited !== visits.current) return;
      setHeld((known.current = lines));
      after?.();
    } catch (error) {
      if (visited === visits.current) setWords(error instanceof Error ? error.message : String(error));
    } finally {
      if (visited === visits.current) busy.current = false;
    }
  };
  const visit = async (target: Target) => {
    setWords("");
    visits.current += 1;
    busy.current = false;
    if (target.to === "end") {
      follows.current = true;
      setMarked(0);
      return put(() => newest(source));
    }
    if (target.device != null && target.device !== source.device) return;
    follows.current = false;
    let seq = target.number;
    if (target.to === "step") {
      const visited = visits.current;
      const found = await read(source, { from_step: target.number, limit: 1 }).catch(() => null);
      if (visited !== visits.current) return;
      if (!found?.lines[0]) return setWords(`no line of step ${count(target.number)} or later`);
      seq = found.lines[0].seq;
    }
    await put(
      () => around(source, seq),
      () => setMarked(seq),
    );
  };
  useEffect(() => void visit(target), [target, source.id, source.attempt, source.device]);
  useEffect(
    () =>
      feed.onLog((event) => {
        if (event.device !== source.device || event.attempt !== source.attempt || !known.current.atEnd) return;
        const more = grown(source, known.current, event.lines);
        if (more == null) void put(() => newest(source, event.lines.at(-1)?.seq));
        else if (follows.current) setHeld((known.current = more));
        else setHeld((known.current = { ...known.current, atEnd: false }));
      }),
    [source.attempt, source.device],
  );
  useEffect(
    () => feed.onResync(() => void (follows.current && put(() => newest(source)))),
    [source.attempt, source.device],
  );

  // The lines that are in sight stay where they are when others are put before them.
  const anchor = useRef<{ seq: number; top: number } | null>(null);
  useLayoutEffect(() => {
    const node = list.current;
    if (!node || search) return;
    if (marked && !anchor.current) node.querySelector(`[data-seq="${marked}"]`)?.scrollIntoView({ block: "nearest" });
    const kept = anchor.current;
    const line = kept && node.querySelector<HTMLElement>(`[data-seq="${kept.seq}"]`);
    if (line) node.scrollTop += line.getBoundingClientRect().top - kept.top;
    else if (follows.current && held.atEnd) node.scrollTop = node.scrollHeight;
    anchor.current = null;
  }, [held, search]);
  useLayoutEffect(() => {
    const node = list.current;
    const line = marked ? node?.querySelector<HTMLElement>(`[data-seq="${marked}"]`) : null;
    if (node && line)
      node.scrollTop += line.getBoundingClientRect().top - node.getBoundingClientRect().top - node.clientHeight / 3;
  }, [marked, search]);

  const scrolled = () => {
    const node = list.current;
    // An event of a scroll may come when the list is gone. While other lines than the drawn ones are held, a place in the
    // list says nothing about them.
    if (!node || search || busy.current || known.current !== held) return;
    follows.current = held.atEnd && node.scrollTop + node.clientHeight > node.scrollHeight - AT_END;
    const keep = (line: LogLine | undefined) => {
      const shown = line && node.querySelector(`[data-seq="${line.seq}"]`);
      anchor.current = shown && line ? { seq: line.seq, top: shown.getBoundingClientRect().top } : null;
    };
    if (node.scrollTop < NEAR && !held.atStart && (held.lines[0]?.seq ?? 1) > 1) {
      void put(
        () => earlier(source, held),
        () => keep(held.lines[0]),
      );
    } else if (!held.atEnd && node.scrollTop + node.clientHeight > node.scrollHeight - NEAR) {
      void put(
        () => later(source, held),
        () => keep(held.lines.at(-1)),
      );
    }
  };

  const found = useMatches(source, wanted, feed);
  const shown = search ? found.lines : held.lines;
  const last = held.lines.at(-1)?.seq;
  return (
    <section class="log" aria-label={`Log of device ${source.device}`}>
      <header>
        device {source.device}
        <span class="muted" role="status">
          {words ||
            (search
              ? `${plural(found.lines.length, "line")}${found.more ? " so far" : ""}${found.busy ? ", searching …" : ""}`
              : last
                ? `lines ${count(held.lines[0]!.seq)} to ${count(last)}${held.atEnd && props.running ? ", live" : ""}`
                : props.running
                  ? "nothing yet"
                  : "no lines")}
        </span>
        {search && found.more && !found.busy && (
          <button class="plain" onClick={found.goOn}>
            search on
          </button>
        )}
      </header>
      <ol ref={list} class="mono" tabIndex={0} aria-label={`lines of device ${source.device}`} onScroll={scrolled}>
        {shown.map((line) => (
          <LogLineView
            key={line.seq}
            line={line}
            wanted={wanted.search.toLowerCase()}
            marked={line.seq === marked}
            show={search ? props.show : undefined}
          />
        ))}
      </ol>
    </section>
  );
}

interface LineProps {
  line: LogLine;
  /** Said in front of it, where lines of several devices are together. */
  device?: boolean;
  wanted: string;
  marked: boolean;
  show: ((seq: number) => void) | undefined;
}

/** Drawn again only when it looks different: there are thousands of them. */
export class LogLineView extends Component<LineProps> {
  override shouldComponentUpdate(next: LineProps): boolean {
    const { line, wanted, marked, show } = this.props;
    return line !== next.line || wanted !== next.wanted || marked !== next.marked || !show !== !next.show;
  }

  override render({ line, wanted, marked, show, device }: LineProps) {
    const title = `line ${line.seq}, ${line.stream}, rank ${line.rank}${line.step == null ? "" : `, step ${line.step}`}`;
    return (
      <li
        class={`${line.stream} level-${levelOf(line.text)}${marked ? " marked" : ""}`}
        data-seq={line.seq}
        title={title}
      >
        {show ? (
          <button class="plain at" title="show it among its neighbours" onClick={() => show(line.seq)}>
            {count(line.seq)}
          </button>
        ) : (
          <span class="at">{clock(line.at).slice(-8)}</span>
        )}
        {device && <span class={`src of-device d${line.device % 8}`}>{line.device}</span>}
        {(line.stream === "stderr" || line.stream === "service") && <span class="src">{line.stream}</span>}
        <bdi>{wanted ? highlighted(line.text, wanted) : line.text}</bdi>
      </li>
    );
  }
}

function highlighted(text: string, wanted: string) {
  const at = text.toLowerCase().indexOf(wanted);
  return at < 0 ? (
    text
  ) : (
    <>
      {text.slice(0, at)}
      <mark>{text.slice(at, at + wanted.length)}</mark>
      {text.slice(at + wanted.length)}
    </>
  );
}
