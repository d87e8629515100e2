/** The least time between two looks at the same thing; one that takes long is looked at less often. */
const PAUSE_MS = 1000;
const SHARE = 5;

/** `look`, at most once at a time and with pauses; what is asked for meanwhile is done once, afterwards. */
export function throttled(look: () => Promise<void>): () => Promise<void> {
  let busy = false;
  let again = false;
  const run = async () => {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    const began = performance.now();
    try {
      await look();
    } catch {
      // The next change asks again; the page goes on showing what it knew.
    }
    setTimeout(
      () => {
        busy = false;
        if (again) {
          again = false;
          void run();
        }
      },
      Math.max(PAUSE_MS, SHARE * (performance.now() - began)),
    );
  };
  return run;
}
