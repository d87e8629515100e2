// What may stand at a place of a spec, from the schema that the service publishes and its list of recipes.

/** A JSON schema, as far as it is used here. */
export interface Schema {
  $ref?: string;
  type?: string | readonly string[];
  const?: unknown;
  enum?: readonly unknown[];
  default?: unknown;
  description?: string;
  properties?: Readonly<Record<string, Schema>>;
  required?: readonly string[];
  items?: Schema;
  anyOf?: readonly Schema[];
  oneOf?: readonly Schema[];
  allOf?: readonly Schema[];
}

export interface Recipe {
  args?: Schema;
  summary?: string;
}

export interface Grammar {
  root: Schema;
  schemas: Readonly<Record<string, Schema>>;
  /** By kind (models, data, losses, optimizers, schedulers) and name. */
  recipes: Readonly<Record<string, Readonly<Record<string, Recipe>>>>;
}

export interface Spot {
  /** Names of the objects and numbers of the lists around the place. */
  path: readonly string[];
  /** Whether a name is written, or a value. */
  naming: boolean;
  /** Where what is written begins, its quotation mark included. */
  from: number;
  typed: string;
  /** Fields that stand before the place in its object. */
  siblings: ReadonlyMap<string, string>;
}

export interface Offer {
  label: string;
  insert: string;
  detail: string;
  info: string;
}

const TOKEN = /"(?:[^"\\\n]|\\.)*"?|[{}[\],:]|[^\s{}[\],:"]+/g;

interface Level {
  name: string;
  array: boolean;
  index: number;
  key: string;
  fields: Map<string, string>;
  /** After a colon: a value is due. */
  valued: boolean;
}

/** Where a place of a text is, however much of the JSON is still missing; null outside of any object. */
export function spotAt(text: string, at: number): Spot | null {
  const levels: Level[] = [];
  let last: { word: string; from: number } | null = null;
  for (const token of text.matchAll(TOKEN)) {
    if (token.index >= at) break;
    const [word] = token;
    const to = token.index + word.length;
    const level = levels.at(-1);
    const open = !/^[{}[\],:]$/.test(word);
    if (open && to >= at) {
      last = { word: text.slice(token.index, at), from: token.index };
      break;
    }
    if (word === "{" || word === "[") {
      const name = level ? (level.array ? String(level.index) : level.key) : "";
      levels.push({ name, array: word === "[", index: 0, key: "", fields: new Map(), valued: false });
    } else if (word === "}" || word === "]") {
      levels.pop();
      const around = levels.at(-1);
      if (around) around.valued = false;
    } else if (word === ",") {
      if (level?.array) level.index += 1;
      else if (level) level.valued = false;
    } else if (word === ":") {
      if (level) level.valued = true;
    } else if (level && !level.array) {
      if (level.valued) level.fields.set(level.key, unquoted(word));
      else level.key = unquoted(word);
    }
  }
  const level = levels.at(-1);
  if (!level) return null;
  const path = levels.slice(1).map((one) => one.name);
  const naming = !level.array && !level.valued;
  const here = level.array ? [...path, String(level.index)] : level.valued ? [...path, level.key] : path;
  return {
    path: here,
    naming,
    from: last?.from ?? at,
    typed: unquoted(last?.word ?? ""),
    siblings: level.fields,
  };
}

const unquoted = (word: string): string => word.replace(/^"|"$/g, "");

/** What may be written at a place. */
export function offersAt(grammar: Grammar, text: string, at: number): { from: number; offers: Offer[] } | null {
  const spot = spotAt(text, at);
  if (!spot) return null;
  if (spot.naming) {
    const schema = schemaAt(grammar, spot.path, text);
    const fields = Object.entries(schema?.properties ?? {});
    const written = text.slice(at).match(/^[\w]*"?\s*:/) !== null;
    const offers = fields
      .filter(([name]) => !spot.siblings.has(name) || name === spot.typed)
      .map(([name, field]) => ({
        label: name,
        insert: written ? `"${name}"` : `"${name}": ${emptyOf(grammar, field)}`,
        detail: kindOf(grammar, field),
        info: descriptionOf(grammar, field),
      }));
    return { from: spot.from, offers };
  }
  const names = recipesAt(grammar, spot.path);
  if (names) {
    const offers = Object.entries(names).map(([name, recipe]) => ({
      label: name,
      insert: `"${name}"`,
      detail: "",
      info: recipe.summary ?? "",
    }));
    return { from: spot.from, offers };
  }
  const schema = schemaAt(grammar, spot.path, text);
  return schema ? { from: spot.from, offers: valuesOf(grammar, schema) } : null;
}

const KINDS: Record<string, string> = {
  model: "models",
  data: "data",
  loss: "losses",
  optimizer: "optimizers",
  scheduler: "schedulers",
};

/** Recipes that `ref` of a component may name. */
function recipesAt(grammar: Grammar, path: readonly string[]): Readonly<Record<string, Recipe>> | null {
  if (path.at(-1) !== "ref" || path[0] !== "program") return null;
  return grammar.recipes[KINDS[path.at(-2) ?? ""] ?? ""] ?? null;
}

/** The schema of what stands at a path; of several forms, all of their fields together. */
function schemaAt(grammar: Grammar, path: readonly string[], text: string): Schema | null {
  let schema: Schema | null = resolved(grammar, grammar.root);
  path.forEach((name, n) => {
    if (name === "args" && path[0] === "program") {
      const component = path[n - 1] ?? "";
      const recipe = grammar.recipes[KINDS[component] ?? ""]?.[refOf(text, path.slice(0, n))];
      if (recipe?.args) {
        schema = recipe.args;
        return;
      }
    }
    const within: Schema | undefined = schema?.properties?.[name] ?? (/^\d+$/.test(name) ? schema?.items : undefined);
    schema = within ? resolved(grammar, within) : null;
  });
  return schema;
}

/** What `ref` of a component is, as far as its text can be read. */
function refOf(text: string, path: readonly string[]): string {
  const [component] = path.slice(-1);
  const found = new RegExp(`"${component}"\\s*:\\s*\\{[^{}]*?"ref"\\s*:\\s*"([^"]*)"`).exec(text);
  return found?.[1] ?? "";
}

/** A schema without references; alternatives become one with the fields of all of them. */
function resolved(grammar: Grammar, schema: Schema): Schema {
  const name = schema.$ref?.split("/").at(-1);
  if (name)
    return resolved(grammar, {
      ...grammar.schemas[name],
      ...(schema.description && { description: schema.description }),
    });
  const forms = [...(schema.anyOf ?? []), ...(schema.oneOf ?? []), ...(schema.allOf ?? [])].map((form) =>
    resolved(grammar, form),
  );
  if (!forms.length) return schema;
  const properties: Record<string, Schema> = {};
  for (const form of forms) {
    for (const [field, its] of Object.entries(form.properties ?? {})) {
      const before = properties[field];
      properties[field] =
        before?.const !== undefined && its.const !== undefined ? { enum: [before.const, its.const] } : (before ?? its);
    }
  }
  const values = forms.flatMap((form) => [...(form.enum ?? []), ...(form.const !== undefined ? [form.const] : [])]);
  const types = forms.flatMap((form) => form.type ?? []);
  const items = forms.find((form) => form.items)?.items;
  return {
    ...schema,
    ...(Object.keys(properties).length && { properties }),
    ...(values.length && { enum: values }),
    ...(types.length && { type: types }),
    ...(items && { items }),
  };
}

function valuesOf(grammar: Grammar, schema: Schema): Offer[] {
  const whole = resolved(grammar, schema);
  const types = [whole.type ?? []].flat();
  const values = [
    ...(whole.const !== undefined ? [whole.const] : []),
    ...(whole.enum ?? []),
    ...(types.includes("boolean") ? [true, false] : []),
    ...(whole.default !== undefined ? [whole.default] : []),
    ...(types.includes("null") ? [null] : []),
  ];
  const texts = [...new Set(values.map((value) => JSON.stringify(value)))];
  const shown = texts.map((text) => ({
    label: text.replace(/^"|"$/g, ""),
    insert: text,
    detail: text === JSON.stringify(whole.default) ? "default" : "",
    info: whole.description ?? "",
  }));
  const empty = emptyOf(grammar, schema);
  return whole.properties && !texts.includes(empty)
    ? [{ label: "{ }", insert: empty, detail: "object", info: "" }, ...shown]
    : shown;
}

/** What a new field begins with. */
function emptyOf(grammar: Grammar, field: Schema): string {
  const whole = resolved(grammar, field);
  if (whole.default !== undefined && whole.default !== null) return JSON.stringify(whole.default);
  if (whole.const !== undefined) return JSON.stringify(whole.const);
  if (whole.enum?.length) return JSON.stringify(whole.enum[0]);
  if (whole.properties) return whole.properties["ref"] ? '{"ref": ""}' : "{}";
  const types = [whole.type ?? []].flat();
  if (types.includes("object")) return "{}";
  if (types.includes("array")) return "[]";
  if (types.includes("boolean")) return "true";
  if (types.includes("integer") || types.includes("number")) return "1";
  return '""';
}

function kindOf(grammar: Grammar, field: Schema): string {
  const whole = resolved(grammar, field);
  const types = [...new Set([whole.type ?? []].flat())].filter((type) => type !== "null");
  return whole.enum ? whole.enum.map(String).join(" | ").slice(0, 60) : types.join(" | ");
}

function descriptionOf(grammar: Grammar, field: Schema): string {
  const whole = resolved(grammar, field);
  const fallback =
    whole.default === undefined || whole.default === null ? "" : `default: ${JSON.stringify(whole.default)}`;
  return [whole.description, fallback].filter(Boolean).join("; ");
}
