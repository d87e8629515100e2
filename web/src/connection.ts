// Whether the service answers. While it does not, clocks stand still: what the page shows is as old as it is.

import { computed, signal } from "@preact/signals";

/** Since when the service does not answer; null while it does. */
export const lostAt = signal<number | null>(null);
export const isLost = computed(() => lostAt.value != null);

export function noteLost(): void {
  if (lostAt.value == null) lostAt.value = Date.now();
}

export function noteAnswer(): void {
  if (lostAt.value != null) lostAt.value = null;
}
