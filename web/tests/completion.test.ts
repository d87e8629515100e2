import { describe, expect, test } from "vitest";

import { type Grammar, offersAt, spotAt } from "../src/submit/completion";

const GRAMMAR: Grammar = {
  root: { $ref: "#/components/schemas/JobSpec" },
  schemas: {
    JobSpec: {
      type: "object",
      properties: {
        name: { type: "string", description: "for people" },
        parallelism: {
          allOf: [{ $ref: "#/components/schemas/Parallelism" }],
          description: "how devices work together",
        },
        program: { oneOf: [{ $ref: "#/components/schemas/Recipe" }, { $ref: "#/components/schemas/Script" }] },
      },
    },
    Parallelism: {
      type: "object",
      properties: { strategy: { type: "string", enum: ["single", "dp", "ddp"], default: "single" } },
    },
    Recipe: {
      type: "object",
      properties: {
        kind: { const: "recipe" },
        model: { $ref: "#/components/schemas/Component" },
        shuffle: { anyOf: [{ type: "boolean" }, { type: "null" }], default: null },
      },
    },
    Script: { type: "object", properties: { kind: { const: "script" }, entrypoint: { type: "string" } } },
    Component: { type: "object", properties: { ref: { type: "string" }, args: { type: "object" } } },
  },
  recipes: {
    models: {
      mlp: { summary: "layers", args: { properties: { width: { type: "integer", default: 8 } } } },
      linear: {},
    },
  },
};

/** Labels that are offered at the | of a text. */
function offered(text: string): string[] {
  const at = text.indexOf("|");
  return offersAt(GRAMMAR, text.replace("|", ""), at)?.offers.map((offer) => offer.label) ?? [];
}

describe("at a place of a spec that is not finished", () => {
  test("names are those of its object that it does not have yet", () => {
    expect(offered('{"name": "a", |')).toEqual(["parallelism", "program"]);
    expect(offered('{"name": "a", "pa|')).toEqual(["parallelism", "program"]);
    expect(offered('{"parallelism": {|}}')).toEqual(["strategy"]);
    expect(offered('{"program": {"|"}}')).toEqual(["kind", "model", "shuffle", "entrypoint"]);
  });
  test("values are those that the schema lists", () => {
    expect(offered('{"parallelism": {"strategy": |}}')).toEqual(["single", "dp", "ddp"]);
    expect(offered('{"parallelism": {"strategy": "d|"}}')).toEqual(["single", "dp", "ddp"]);
    expect(offered('{"program": {"kind": |')).toEqual(["recipe", "script"]);
    expect(offered('{"program": {"shuffle": |')).toEqual(["true", "false", "null"]);
  });
  test("recipes are offered by their names, and their arguments by the recipe", () => {
    expect(offered('{"program": {"model": {"ref": "|"}}}')).toEqual(["mlp", "linear"]);
    expect(offered('{"program": {"model": {"ref": "mlp", "args": {|}}}}')).toEqual(["width"]);
  });
  test("what is inserted is JSON, with a value to begin with", () => {
    const at = '{"parallelism": {'.length;
    expect(offersAt(GRAMMAR, '{"parallelism": {', at)?.offers[0]?.insert).toBe('"strategy": "single"');
  });
  test("is told by the objects around it", () => {
    expect(spotAt('{"a": [{"b": 1}, {"c": ', 23)?.path).toEqual(["a", "1", "c"]);
    expect(spotAt("", 0)).toBeNull();
  });
});
