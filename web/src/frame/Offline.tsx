import { useEffect } from "preact/hooks";

import { whoAmI } from "../api";
import { isLost, lostAt } from "../connection";
import { clock } from "../format";

const AGAIN_MS = 2000;

/** Says that what is shown is old, and asks again until the service answers. */
export function Offline() {
  const lost = isLost.value;
  useEffect(() => {
    if (!lost) return;
    const timer = setInterval(() => whoAmI().catch(() => undefined), AGAIN_MS);
    return () => clearInterval(timer);
  }, [lost]);
  if (lostAt.value == null) return null;
  return (
    <div class="not-answering" role="alert">
      <b>No answer.</b> The service has not answered since {clock(new Date(lostAt.value).toISOString())}; this page
      shows what was known then, and its clocks stand still. It tries again by itself.
    </div>
  );
}
