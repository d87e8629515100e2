import { useEffect, useRef, useState } from "preact/hooks";

import { Problem } from "./api";
import { throttled } from "./throttle";

const LOOK_MS = 5000;

/** What `read` finds, looked at every few seconds while the page is seen; what is wrong, if it cannot be read; and a
 * function that looks at once. */
export function useLooking<T>(read: () => Promise<T>): [T | null, string, () => Promise<void>] {
  const [found, setFound] = useState<T | null>(null);
  const [problem, setProblem] = useState("");
  const look = useRef(
    throttled(async () => {
      try {
        setFound(await read());
        setProblem("");
      } catch (error) {
        setProblem(error instanceof Problem ? error.message : String(error));
      }
    }),
  ).current;
  useEffect(() => {
    void look();
    const timer = setInterval(() => !document.hidden && void look(), LOOK_MS);
    return () => clearInterval(timer);
  }, []);
  return [found, problem, look];
}
