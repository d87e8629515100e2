// What came of something that a person asked for, where the page does not show it. What went well goes away by itself.

import { signal } from "@preact/signals";

type Tone = "good" | "bad";

const words = signal("");
const tone = signal<Tone>("bad");
const GOOD_MS = 4000;
let timer: ReturnType<typeof setTimeout> | undefined;

export function Toast() {
  if (!words.value) return null;
  return (
    <div class={`toast ${tone.value}`} role={tone.value === "bad" ? "alert" : "status"} dir="auto">
      {words.value}{" "}
      <button class="plain" onClick={() => say("")}>
        Close
      </button>
    </div>
  );
}

export function say(what: string, how: Tone = "bad"): void {
  clearTimeout(timer);
  words.value = what;
  tone.value = how;
  if (what && how === "good") timer = setTimeout(() => say(""), GOOD_MS);
}

/** Do something, and say so if it fails. */
export async function attempt(act: () => Promise<unknown>): Promise<void> {
  const before = words.value;
  try {
    await act();
    if (words.value === before) say("");
  } catch (error) {
    say(error instanceof Error ? error.message : String(error));
  }
}
