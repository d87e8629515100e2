/** Runs that one page compares: as many as can be told apart by colour. */
export const MOST_COMPARED = 8;
