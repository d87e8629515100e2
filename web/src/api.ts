// Requests to the API that served this page, and the shapes of its answers, as far as pages use them.
// The session's cookie goes along by itself.

import { signal } from "@preact/signals";

export interface Reason {
  code: string;
  message: string;
}

export interface Placement {
  node: string;
  devices: string[];
  ranks: number[];
}

export type State = "queued" | "starting" | "running" | "succeeded" | "failed" | "cancelled";

export interface JobSummary {
  id: string;
  name: string;
  state: State;
  reason: Reason;
  pool: string;
  /** Of each node. */
  devices: number;
  nodes: number;
  strategy: string;
  priority: number;
  labels: Record<string, string>;
  attempt: number;
  cancel_requested: boolean;
  created_at: string;
  started_at: string | null;
  first_step_at: string | null;
  finished_at: string | null;
  placement: Placement[];
  archived: boolean;
}

/** A job of a list; events leave out what the list alone knows. */
export interface ListedJob extends JobSummary {
  progress?: Progress | null;
  queue_position?: number | null;
}

export interface Progress {
  fraction?: number | null;
  step?: number | null;
  steps?: number | null;
  epoch?: number | null;
  epochs?: number | null;
  unit?: string;
  loss?: number | null;
  rows_per_second?: number | null;
  eta_seconds?: number | null;
}

export interface JobStatus extends JobSummary {
  version: number;
  queue_position: number | null;
  retries: number;
  max_retries: number;
  losses: number;
  retry_at: string | null;
  checkpoint: { step: number; epoch: number; attempt: number; saved_at: string } | null;
  parent_id: string | null;
  batch_size: number | null;
  global_batch_size: number | null;
  start: string;
  rehearsal: boolean;
  network: string | null;
  progress: Progress | null;
  result: { loss: number | null; metrics: Record<string, number> } | null;
  error: { rank?: number; message?: string; traceback?: string | null; advice?: string | null; kind?: string } | null;
  spec: unknown;
}

export interface Attempt {
  attempt: number;
  state: string;
  placement: Placement[];
  created_at: string;
  claimed_at: string | null;
  started_at: string | null;
  first_step_at: string | null;
  ended_at: string | null;
  reason: Reason | null;
  resumed_from?: { step: number; attempt: number } | null;
  network?: string | null;
}

export interface Timing {
  total: number;
  p50: number;
  p95: number;
  /** Of reports of earlier versions null: their totals are those of the measured steps alone. */
  measured_steps?: number | null;
  error?: number | null;
}

export interface Pattern {
  phase: string;
  module: string;
  batch_rows: number | null;
  rows: (number | null)[] | null;
  shapes_vary: boolean | null;
  input_shapes: (number[] | null)[] | null;
  output_shapes: (number[] | null)[] | null;
  steps: number | null;
  first_step: number | null;
  last_step: number | null;
}

/** How much work is done: of a device, or of all together. Reports of earlier versions lack some. */
export interface Rates {
  rows_per_second?: number | null;
  tokens_per_second?: number | null;
  flop_per_step?: number | null;
  flop_per_second?: number | null;
  mfu?: number | null;
}

export interface DeviceMeasures extends Rates {
  device: number;
  rows: number | null;
  share: number | null;
  steps: number;
  idle_steps: number;
  forward_ms: Timing | null;
  backward_ms: Timing | null;
  data_wait_ms: Timing | null;
  comm_ms: Timing | null;
  ms_per_row: number | null;
  memory_peak_bytes: number | null;
  optimizer_ms?: Timing | null;
  other_ms?: Timing | null;
  wall_ms?: number | null;
}

/** A node's devices together; the times are means over them, in milliseconds over all steps. */
export interface NodeMeasures {
  node: string;
  devices: number[];
  rows: number | null;
  share: number | null;
  steps: number;
  slowest_device: number | null;
  data_wait_ms?: number | null;
  comm_ms?: number | null;
  wall_ms?: number | null;
}

export interface Finding {
  code: string;
  severity: string;
  message: string;
  suggestion: string;
  numbers?: Record<string, number>;
  cost_device_seconds?: number | null;
  cost_share?: number | null;
}

export interface ReportDevice {
  device: number;
  id: string;
  node: string;
  name: string;
  rank: number;
  memory_total_bytes: number | null;
}

export interface Balance {
  rows_max_over_mean: number | null;
  time_max_over_mean: number | null;
  slowest_device: number | null;
  cause: string | null;
  idle_device_steps: number | null;
  wasted_device_seconds: number | null;
  output_device_memory_skew: number | null;
  /** Of several nodes only. */
  slowest_node?: string | null;
}

export interface Report extends Rates {
  job_id: string;
  attempt: number;
  final: boolean;
  strategy: string;
  device_kind: string;
  virtual: boolean;
  rehearsal?: boolean;
  devices: ReportDevice[];
  patterns: Pattern[];
  per_device: DeviceMeasures[];
  /** Where there are several; reports of earlier versions lack it. */
  per_node?: NodeMeasures[];
  primitives: Record<string, Timing> | null;
  balance: Balance;
  findings: Finding[];
  notes: Record<string, string>;
  verdict?: string;
  learning_rate?: number | null;
}

export interface Plan {
  rows: number | null;
  batch_size: number | null;
  global_batch_size: number | null;
  patterns: Pattern[];
  findings: Finding[];
  notes: Record<string, string>;
}

export interface Point {
  number: number;
  step: number;
  value: number | null;
  at: string;
}

export interface Bucket {
  count: number;
  first: Point;
  last: Point;
  minimum: number | null;
  maximum: number | null;
  mean: number | null;
}

export interface Series {
  device: number;
  name: string;
  points: Point[];
  buckets: Bucket[];
}

export interface LogLine {
  seq: number;
  at: string;
  device: number;
  rank: number;
  stream: string;
  step: number | null;
  text: string;
  continued: boolean;
}

export interface LogPage {
  attempt: number;
  lines: LogLine[];
  next: string | null;
  ended: boolean;
}

export interface LogEvent {
  attempt: number;
  device: number;
  lines: LogLine[];
}

export interface MetricEvent {
  attempt: number;
  device: number;
  name: string;
  first: number;
  points: [number, number | null, string][];
}

export interface Device {
  device: number;
  label: string;
  id: string;
  name: string;
  kind: string;
  memory_total_bytes: number | null;
  state: "free" | "leased" | "quarantined" | "offline";
  job: string | null;
  attempt: number | null;
  quarantine: string | null;
  quarantined_at: string | null;
  name_in_fleet?: string;
  suspected?: string | null;
}

export interface DeviceHistoryLine {
  at: string;
  event: "attempt" | "quarantined" | "released";
  job: string | null;
  attempt: number | null;
  reason: string | null;
  hours: number;
  peers: number;
  ms_per_row: number | null;
  relative_ms_per_row: number | null;
  slow: boolean;
  error: string | null;
  quarantine: string | null;
  by: string | null;
}

export interface DeviceHistory {
  id: string;
  node: string;
  label: string;
  name: string;
  state: string;
  suspected: string | null;
  lines: DeviceHistoryLine[];
}

export interface NodeView {
  id: string;
  pool: string;
  host: string;
  version: string;
  cores: number;
  alive: boolean;
  draining: boolean;
  stopping: boolean;
  drain_deadline_at: string | null;
  attempts: number;
  devices: Device[];
  queued: number;
  box: Box;
  /** It lacks the box that its pool demands, and takes no work. */
  unboxed: boolean;
  low_disk: LowDisk | null;
  /** It shares its machine with other nodes. */
  virtual: boolean;
  topology: string;
}

/** What a job has for itself on a node. Of a worker of an earlier version no rights are known. */
export interface Box {
  level: string;
  rights: { name: string; has: boolean; why: string | null }[];
}

/** A disk that has less left than the service keeps for itself: its node takes no work. */
export interface LowDisk {
  name: string;
  free_bytes: number;
  reserve_bytes: number;
  free_files: number;
  reserve_files: number;
}

export interface Pool {
  name: string;
  devices: number;
  free: number;
  leased: number;
  quarantined: number;
  nodes: number;
  live_nodes: number;
  queued: number;
  /** Its policy: the box that a node must have to take work, and the network that jobs get. */
  box: string;
  network: string;
  unboxed: number;
}

/** One limit of a quota. `used` is null where it is not counted, `allowed` where there is as much as there is. */
export interface QuotaLimit {
  name: string;
  used: number | null;
  allowed: number | null;
  free_at: string | null;
}

export interface Quota {
  tenant: string;
  token: string | null;
  window_hours: number;
  limits: QuotaLimit[];
}

export interface Webhook {
  id: string;
  name: string;
  url: string;
  format: string;
  events: string[];
  repo?: string;
  to?: string[];
  active: boolean;
  delivered_at: string | null;
  failing_since: string | null;
  problem: string;
  waiting: number;
  dead: number;
  missed: number;
}

export interface Delivery {
  id: string;
  kind: string;
  state: "waiting" | "delivered" | "dead";
  tries: number;
  created_at: string | null;
  tried_at: string | null;
  status: number | null;
  problem: string;
  data: { id?: string; node?: string; name?: string };
}

export interface Me {
  token: string;
  tenant: string;
  scopes: string[];
  operator: boolean;
}

export interface SignInWays {
  /** Name of the identity provider; "" where there is none. */
  single_sign_on: string;
}

export interface FieldError {
  field: string;
  message: string;
}

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
  if (body !== undefined) wanted.body = typeof body === "string" ? body : JSON.stringify(body);
  let answer: Response;
  try {
    answer = await fetch(path, wanted);
  } catch {
    throw new Problem(0, "unreachable", "the service does not answer; it may be restarting");
  }
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

export const get = <T,>(path: string): Promise<T> => call<T>("GET", path);
/** The answer with texts as the service has them, for what is sent back to it; they are shown by `show`. */
export const getAsItIs = async <T,>(path: string): Promise<T> => JSON.parse(await fetchText("GET", path)) as T;
export const post = <T,>(path: string, body?: unknown, headers?: HeadersInit): Promise<T> =>
  call<T>("POST", path, body, headers);

export async function whoAmI(): Promise<void> {
  try {
    me.value = await get<Me>("/v1/me");
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 401) throw error;
  }
}

export const ENDED: ReadonlySet<State> = new Set(["succeeded", "failed", "cancelled"]);
