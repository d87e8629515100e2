import { useEffect, useRef, useState } from "preact/hooks";

import { Problem } from "./api";
import { type Look, throttled } from "./throttle";

const LOOK_MS = 5000;

/** What `read` finds, looked at every few seconds while the page is seen; what is wrong, if it cannot be read; and a
 * function that looks at once. It looks at once, too, where what it is `about` changes. */
export function useLooking<T>(read: () => Promise<T>, about: unknown = null): [T | null, string, Look] {
  const [found, setFound] = useState<T | null>(null);
  const [problem, setProblem] = useState("");
  const reading = useRef(read);
  reading.current = read;
  const look = useRef(
    throttled(async () => {
      try {
        setFound(await reading.current());
        setProblem("");
      } catch (error) {
        setProblem(error instanceof Problem ? error.message : String(error));
      }
    }),
  ).current;
  useEffect(() => {
    void look(true);
    const timer = setInterval(() => !document.hidden && void look(), LOOK_MS);
    return () => clearInterval(timer);
  }, [about]);
  return [found, problem, look];
}
