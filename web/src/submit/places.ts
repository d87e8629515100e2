// Where the fields of a JSON text stand, so that what is wrong with one can be shown there.

const TOKEN = /"(?:[^"\\\n]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+|"/g;

interface Level {
  path: string;
  array: boolean;
  index: number;
  key: string;
}

export interface Place {
  line: number;
  from: number;
  to: number;
}

/** The keys of all objects of a text, as far as it can be read, by their dotted path. Items of lists are numbers. */
export function places(text: string): Map<string, Place> {
  const found = new Map<string, Place>();
  const tokens = [...text.matchAll(TOKEN)];
  const levels: Level[] = [];
  const here = () => {
    const level = levels.at(-1);
    if (!level) return "";
    const name = level.array ? String(level.index) : level.key;
    return level.path ? `${level.path}.${name}` : name;
  };
  tokens.forEach((token, n) => {
    const [word] = token;
    const level = levels.at(-1);
    if (word === "{" || word === "[") levels.push({ path: here(), array: word === "[", index: 0, key: "" });
    else if (word === "}" || word === "]") levels.pop();
    else if (word === "," && level?.array) level.index += 1;
    else if (level && !level.array && tokens[n + 1]?.[0] === ":") {
      level.key = word.replace(/^"|"$/g, "");
      const path = here();
      if (!found.has(path))
        found.set(path, { line: lineOf(text, token.index), from: token.index, to: token.index + word.length });
    }
  });
  return found;
}

/** Where to show a problem of a field: at the field, or, where it is missing, at what it is missing from. */
export function placeOf(field: string, known: Map<string, Place>): Place | null {
  const parts = field.split(".");
  while (parts.length) {
    const place = known.get(parts.join("."));
    if (place) return place;
    parts.pop();
  }
  return null;
}

/** Of a message such as "expected `,` at line 3 column 5". */
export function placeInWords(message: string, text: string): Place | null {
  const said = /line (\d+) column (\d+)/.exec(message);
  if (!said) return null;
  const line = Number(said[1]);
  const before =
    text
      .split("\n")
      .slice(0, line - 1)
      .join("\n").length + (line > 1 ? 1 : 0);
  const from = Math.min(before + Number(said[2]) - 1, text.length);
  return { line, from, to: from + 1 };
}

function lineOf(text: string, offset: number): number {
  let line = 1;
  for (let at = text.indexOf("\n"); at >= 0 && at < offset; at = text.indexOf("\n", at + 1)) line += 1;
  return line;
}
