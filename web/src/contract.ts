// The shapes of the API's answers, by the names that pages use. They are made from its OpenAPI document (schema.ts); only
// what that leaves open is said here: events of streams, and what states there are.

import type { components } from "./schema";

type Schemas = components["schemas"];

export type State = "queued" | "starting" | "running" | "succeeded" | "failed" | "cancelled";
export const STATES: readonly State[] = ["queued", "starting", "running", "succeeded", "failed", "cancelled"];

export type Reason = Schemas["ReasonView"];
export type Placement = Schemas["PlacementView"];
export type Progress = Schemas["Progress"];
export type JobSummary = Schemas["JobSummary"];
export type ListedJob = Schemas["ListedJob"];
export type JobList = Schemas["JobList"];
export type JobTable = Schemas["JobTable"];
export type JobColumn = Schemas["JobColumn"];
export type JobColumnList = Schemas["JobColumnList"];
export type JobSpec = Schemas["JobSpec"];
export type Attempt = Schemas["AttemptView"];
export type AttemptList = Schemas["AttemptList"];
export type CancelledJobs = Schemas["CancelledJobs"];

/** The API leaves open what a result and an error have in them. */
export interface JobResult {
  loss?: number | null;
  metrics?: Record<string, number>;
}
export interface JobError {
  rank?: number;
  message?: string;
  traceback?: string | null;
  advice?: string | null;
  kind?: string;
}
export type JobStatus = Omit<Schemas["JobStatus"], "result" | "error"> & {
  result: JobResult | null;
  error: JobError | null;
};

export type Timing = Schemas["Timing"];
export type Pattern = Schemas["Pattern"];
export type DeviceMeasures = Schemas["DeviceMeasures"];
export type NodeMeasures = Schemas["NodeMeasures"];
export type Finding = Schemas["Finding"];
export type ReportDevice = Schemas["ReportDevice"];
export type Balance = Schemas["Balance"];
export type Report = Schemas["Report"];
export type ReportDiff = Schemas["ReportDiff"];
export type ValuePair = Schemas["ValuePair"];
export type Plan = Schemas["Plan"];
/** How much work is done: of a device, or of all together. */
export type Rates = Pick<
  DeviceMeasures,
  "rows_per_second" | "tokens_per_second" | "flop_per_step" | "flop_per_second" | "mfu"
>;

export type Point = Schemas["PointView"];
export type Bucket = Schemas["BucketView"];
export type Series = Schemas["SeriesView"];
export type MetricList = Schemas["MetricList"];
export type LogLine = Schemas["LogLine"];
export type LogPage = Schemas["LogPage"];
export type ArtifactList = Schemas["ArtifactList"];
export type Artifact = Schemas["ArtifactView"];
export type ProfileList = Schemas["ProfileList"];
export type Profile = Schemas["ProfileView"];

export type Device = Schemas["DeviceView"];
export type DeviceHistory = Schemas["DeviceHistory"];
export type DeviceHistoryLine = Schemas["DeviceHistoryLine"];
export type NodeView = Schemas["NodeView"];
export type NodeList = Schemas["NodeList"];
export type Box = Schemas["BoxView"];
export type LowDisk = Schemas["LowDiskView"];
export type Pool = Schemas["PoolView"];
export type PoolList = Schemas["PoolList"];

export type QuotaLimit = Schemas["QuotaLimit"];
export type GroupSummary = Schemas["GroupSummary"];
export type ComparisonReport = Schemas["ComparisonReport"];
export type SweepReport = Schemas["SweepReport"];
export type Quota = Schemas["QuotaView"];
export type Webhook = Schemas["WebhookView"];
export type WebhookList = Schemas["WebhookList"];
export type Delivery = Omit<Schemas["DeliveryView"], "data" | "state"> & {
  state: "waiting" | "delivered" | "dead";
  data: { id?: string; node?: string; name?: string };
};
export interface DeliveryList {
  deliveries: Delivery[];
}
export type Me = Schemas["Caller"];
export type SignInWays = Schemas["SignInWays"];
export type FieldError = Schemas["FieldError"];

// -- events of streams, whose data the document does not describe ----------------------------------------------------

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

/** The data of each event, by its name. `resync` is the page's own: what is shown has to be fetched anew. */
export interface Events {
  job: JobSummary;
  gone: { job_id: string };
  state: unknown;
  progress: Progress & { attempt: number };
  report: unknown;
  metric: MetricEvent;
  log: LogEvent;
  fleet: unknown;
  finding: unknown;
  resync: null;
  end: { state: string } | null;
}
