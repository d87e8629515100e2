// The fields that people set most, beside the text of the spec: each changes its field there.

import { get, type PoolList } from "../api";
import { useLooking } from "../looking";
import { type Change, type Json, valueAt } from "./changes";
import type { Grammar } from "./completion";

type Kind = "text" | "whole" | "number" | readonly string[];

interface Field {
  title: string;
  path: string;
  kind: Kind;
  /** For which programs; without it for all. */
  of?: "recipe" | "script";
}

function fieldsOf(grammar: Grammar | null, pools: readonly string[]): Field[] {
  const names = (kind: string) => Object.keys(grammar?.recipes[kind] ?? {});
  return [
    { title: "Name", path: "name", kind: "text" },
    { title: "Pool", path: "pool", kind: pools },
    { title: "Devices", path: "resources.devices", kind: "whole" },
    { title: "Nodes", path: "resources.nodes", kind: "whole" },
    { title: "Strategy", path: "parallelism.strategy", kind: ["single", "dp", "ddp", "fsdp"] },
    { title: "Priority", path: "priority", kind: "whole" },
    { title: "Model", path: "program.model.ref", kind: names("models"), of: "recipe" },
    { title: "Data", path: "program.data.ref", kind: names("data"), of: "recipe" },
    { title: "Batch size", path: "program.data.batch_size", kind: "whole", of: "recipe" },
    { title: "Epochs", path: "program.epochs", kind: "whole", of: "recipe" },
    { title: "Optimizer", path: "program.optimizer.ref", kind: names("optimizers"), of: "recipe" },
    { title: "Learning rate", path: "program.optimizer.args.lr", kind: "number", of: "recipe" },
    { title: "Starts with", path: "program.entrypoint", kind: "text", of: "script" },
  ];
}

export function Form(props: { spec: Json | undefined; grammar: Grammar | null; set: (change: Change) => void }) {
  const { spec } = props;
  const [pools] = useLooking(() => get<PoolList>("/v1/pools"));
  if (spec === undefined) return <p class="muted">The form is back when the text is JSON again.</p>;
  const kind = valueAt(spec, "program.kind") === "script" ? "script" : "recipe";
  const fields = fieldsOf(props.grammar, pools?.pools.map((pool) => pool.name) ?? []);
  return (
    <div class="spec-form">
      {fields
        .filter((field) => !field.of || field.of === kind)
        .map((field) => (
          <FieldOf key={field.path} field={field} value={valueAt(spec, field.path)} set={props.set} />
        ))}
    </div>
  );
}

function FieldOf(props: { field: Field; value: Json | undefined; set: (change: Change) => void }) {
  const { field, value } = props;
  const text = value === undefined || value === null ? "" : String(value);
  const set = (written: string) => {
    const number = Number(written);
    const isNumber = field.kind === "whole" || field.kind === "number";
    if (written === "" && isNumber) return;
    props.set([field.path, isNumber && Number.isFinite(number) ? number : written]);
  };
  if (typeof field.kind === "object") {
    const options = text && !field.kind.includes(text) ? [text, ...field.kind] : field.kind;
    return (
      <label>
        {field.title}
        <select value={text} onChange={(event) => event.currentTarget.value && set(event.currentTarget.value)}>
          {!text && <option value="">by default</option>}
          {options.map((name) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
      </label>
    );
  }
  return (
    <label>
      {field.title}
      <input
        type={(field.kind === "text" ? "text" : "number") as "text"}
        placeholder="by default"
        value={text}
        onChange={(event) => set(event.currentTarget.value)}
      />
    </label>
  );
}
