// A text field with numbers of lines, of which those with a problem are marked.

import { useRef } from "preact/hooks";

import type { Place } from "./places";

export interface Mark {
  place: Place;
  words: string;
}

const ROWS = 28;

export function Editor(props: {
  text: string;
  change: (text: string) => void;
  marks: Mark[];
  wrong: boolean;
  submit: () => void;
}) {
  const gutter = useRef<HTMLDivElement>(null);
  const lines = props.text.split("\n").length;
  const wrong = new Map(props.marks.map((mark) => [mark.place.line, mark.words]));
  return (
    <div class="editor">
      <div class="gutter mono" aria-hidden="true">
        <div ref={gutter}>
          {Array.from({ length: lines }, (_, n) => (
            <div key={n} class={wrong.has(n + 1) ? "wrong" : ""} title={wrong.get(n + 1)}>
              {wrong.has(n + 1) ? "● " : ""}
              {n + 1}
            </div>
          ))}
        </div>
      </div>
      <textarea
        id="spec"
        aria-label="Job spec as JSON"
        aria-describedby="problems"
        aria-invalid={props.wrong}
        rows={ROWS}
        wrap="off"
        spellcheck={false}
        autocapitalize="off"
        value={props.text}
        onInput={(event) => props.change(event.currentTarget.value)}
        onScroll={(event) =>
          gutter.current!.style.setProperty("transform", `translateY(${-event.currentTarget.scrollTop}px)`)
        }
        onKeyDown={(event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && props.submit()}
      />
    </div>
  );
}

/** Put the cursor where a problem is. */
export function show(place: Place): void {
  const field = document.querySelector<HTMLTextAreaElement>("#spec")!;
  field.focus();
  field.setSelectionRange(place.from, place.to);
  const height = field.scrollHeight / Math.max(field.value.split("\n").length, 1);
  field.scrollTop = Math.max(0, (place.line - 8) * height);
}
