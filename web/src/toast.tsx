// What came of something that a person asked for, where the page does not show it, until they have read it.

import { signal } from "@preact/signals";

const words = signal("");

export function Toast() {
  if (!words.value) return null;
  return (
    <div class="toast" role="alert" dir="auto">
      {words.value}{" "}
      <button class="plain" onClick={() => (words.value = "")}>
        Close
      </button>
    </div>
  );
}

export function say(what: string): void {
  words.value = what;
}

/** Do something, and say so if it fails. */
export async function attempt(act: () => Promise<unknown>): Promise<void> {
  try {
    await act();
    words.value = "";
  } catch (error) {
    words.value = error instanceof Error ? error.message : String(error);
  }
}
