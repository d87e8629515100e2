/** The least time between two looks at the same thing; one that takes long is looked at less often, up to the longest. */
const PAUSE_MS = 1000;
const SHARE = 5;
const LONGEST_MS = 10_000;

export type Look = (hurry?: boolean) => Promise<void>;

/** `look`, at most once at a time and with pauses; what is asked for meanwhile is done once, afterwards. Who has just
 * changed something is in a hurry, and waits for no pause. */
export function throttled(look: () => Promise<void>): Look {
  let looking = false;
  let pause: ReturnType<typeof setTimeout> | undefined;
  let again = false;
  let hurried = false;
  const run = async (hurry = false) => {
    if (looking || (pause && !hurry)) {
      again = true;
      hurried ||= hurry;
      return;
    }
    clearTimeout(pause);
    pause = undefined;
    looking = true;
    again = hurried = false;
    const began = performance.now();
    try {
      await look();
    } catch {
      // The next change asks again; the page goes on showing what it knew.
    }
    looking = false;
    if (hurried) return run(true);
    const wait = Math.min(LONGEST_MS, Math.max(PAUSE_MS, SHARE * (performance.now() - began)));
    pause = setTimeout(() => {
      pause = undefined;
      if (again) void run();
    }, wait);
  };
  return run;
}
