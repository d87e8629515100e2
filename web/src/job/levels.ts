// How grave a line is, by the words that loggers and Python put into it.

export type Level = "debug" | "info" | "warning" | "error";
export const LEVELS: readonly Level[] = ["debug", "info", "warning", "error"];

const WORDS: readonly [Level, RegExp][] = [
  [
    "error",
    /\b(?:ERROR|CRITICAL|FATAL|Traceback \(most recent call last\))|^(?:\[rank\d+\]:\s*)?[\w.]*(?:Error|Exception)\b/,
  ],
  ["warning", /\bWARN(?:ING)?\b|\b\w*Warning:/],
  ["debug", /\b(?:DEBUG|TRACE)\b/],
];

/** A line without any such word is as an "info" line is. */
export function levelOf(text: string): Level {
  return WORDS.find(([, words]) => words.test(text))?.[0] ?? "info";
}

export const isAtLeast = (text: string, least: Level): boolean =>
  LEVELS.indexOf(levelOf(text)) >= LEVELS.indexOf(least);
