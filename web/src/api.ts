// Requests to the API that served this page. The session's cookie goes along by itself.

import { signal } from "@preact/signals";

import { noteAnswer, noteLost } from "./connection";
import type { FieldError, Me } from "./contract";

export * from "./contract";

/** An answer that says what went wrong: RFC 9457, with our stable `code`. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
    readonly errors: FieldError[] = [],
  ) {
    super(detail);
  }
}

/** Who is signed in; null: nobody is, undefined: not known yet. */
export const me = signal<Me | null | undefined>(undefined);

export const may = (scope: "submit" | "admin"): boolean => {
  const scopes = me.value?.scopes ?? [];
  return scopes.includes("admin") || (scope === "submit" && scopes.includes("submit"));
};

const TIMEOUT_MS = 70_000;

/** Send a request and read its JSON answer (undefined where there is none). Raises Problem. */
export async function call<T>(method: string, path: string, body?: unknown, headers: HeadersInit = {}): Promise<T> {
  const text = await fetchText(method, path, body, headers);
  return (text ? read(text) : undefined) as T;
}

async function fetchText(method: string, path: string, body?: unknown, headers: HeadersInit = {}): Promise<string> {
  const wanted: RequestInit = {
    method,
    headers: body === undefined ? headers : { "Content-Type": "application/json", ...headers },
    signal: AbortSignal.timeout(TIMEOUT_MS),
    credentials: "same-origin",
  };
  if (body !== undefined) wanted.body = typeof body === "string" || body instanceof Blob ? body : JSON.stringify(body);
  let answer: Response;
  try {
    answer = await fetch(path, wanted);
  } catch {
    noteLost();
    throw new Problem(0, "unreachable", "the service does not answer; it may be restarting");
  }
  noteAnswer();
  if (answer.status === 401) me.value = null;
  const text = await answer.text();
  if (!answer.ok) throw problemOf(answer.status, text);
  return text;
}

/** C1, marks that turn the direction of writing, separators, and the mark without a width. Names and lines are other
 * people's, and could look like something else than they are. */
const UNSAFE = /[\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;
const escaped = (one: string): string => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`;

/** Text as it can be shown, with such marks written out as `\u202e`. */
export const show = (text: string): string => text.replace(UNSAFE, escaped);

/** JSON, all of whose texts can be shown. */
export const read = (text: string): unknown => JSON.parse(text.replace(UNSAFE, (one) => `\\${escaped(one)}`));

function problemOf(status: number, text: string): Problem {
  try {
    const found = read(text) as { code?: string; detail?: string; title?: string; errors?: FieldError[] };
    return new Problem(status, found.code ?? "", found.detail ?? found.title ?? `status ${status}`, found.errors);
  } catch {
    return new Problem(status, "", `the service answered with status ${status}`);
  }
}

export const get = <T>(path: string): Promise<T> => call<T>("GET", path);
/** The answer with texts as the service has them, for what is sent back to it; they are shown by `show`. */
export const getAsItIs = async <T>(path: string): Promise<T> => JSON.parse(await fetchText("GET", path)) as T;
export const post = <T>(path: string, body?: unknown, headers?: HeadersInit): Promise<T> =>
  call<T>("POST", path, body, headers);

export async function whoAmI(): Promise<void> {
  try {
    me.value = await get<Me>("/v1/me");
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 401) throw error;
  }
}

export const ENDED: ReadonlySet<string> = new Set(["succeeded", "failed", "cancelled"]);
