import { useEffect, useState } from "preact/hooks";

import { lostAt } from "./connection";

/** The time, each second anew; the time of the last answer while the service does not answer. */
export function useClock(): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return lostAt.value ?? now;
}
