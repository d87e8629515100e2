/** Where the tab keeps the spec that is being written. */
export const DRAFT = "shardyard.draft";
