import { useEffect, useRef, useState } from "preact/hooks";

import type { Handle } from "./codemirror";
import type { Grammar } from "./completion";
import type { Place } from "./places";

export interface Mark {
  place: Place;
  words: string;
}

interface Props {
  text: string;
  change: (text: string) => void;
  marks: readonly Mark[];
  grammar: Grammar | null;
  submit: () => void;
}

let shown: Handle | null = null;

/** A field for a spec. Its program is fetched when it is needed; until then there is the plain text. */
export function Editor(props: Props) {
  const host = useRef<HTMLDivElement>(null);
  const latest = useRef(props);
  latest.current = props;
  const [handle, setHandle] = useState<Handle | null>(null);
  useEffect(() => {
    let left = false;
    let made: Handle | null = null;
    void import("./codemirror").then(({ mount }) => {
      if (left || !host.current) return;
      made = mount(host.current, {
        text: latest.current.text,
        change: (text) => latest.current.change(text),
        submit: () => latest.current.submit(),
        grammar: () => latest.current.grammar,
      });
      shown = made;
      setHandle(made);
    });
    return () => {
      left = true;
      made?.destroy();
      shown = null;
    };
  }, []);
  useEffect(() => {
    if (handle && handle.view.state.doc.toString() !== props.text) handle.set(props.text);
  }, [handle, props.text]);
  useEffect(() => handle?.mark(props.marks), [handle, props.marks]);
  return <div ref={host} class="editor" />;
}

/** Put the cursor where a problem is. */
export const show = (place: Place): void => shown?.show(place.from, place.to);
