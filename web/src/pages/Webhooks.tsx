// Webhooks, how they fare, and what they could not deliver.

import { useEffect, useState } from "preact/hooks";

import { call, type Delivery, get, may, post, type Webhook } from "../api";
import { clock, plural } from "../format";
import { useLooking } from "../looking";
import { Link } from "../router";
import type { Look } from "../throttle";
import { attempt } from "../toast";

/** Deliveries that a list shows, and how often it is looked at what became of a test. */
const SHOWN = 20;
const SHOWS = [
  ["all", "All"],
  ["dead", "Given up"],
  ["delivered", "Delivered"],
] as const;
const STANDS: Record<Delivery["state"], [string, string]> = {
  waiting: ["queued", "waits"],
  delivered: ["succeeded", "delivered"],
  dead: ["failed", "given up"],
};

export function WebhooksPage() {
  const [found, problem, look] = useLooking(() => get<{ webhooks: Webhook[] }>("/v1/webhooks"));
  useEffect(() => {
    document.title = "Webhooks: Shardyard";
  }, []);
  return (
    <>
      <div class="row head">
        <h1>Webhooks</h1>
        <span class="muted">messages to your services when jobs change</span>
      </div>
      {problem && (
        <div class="notice bad" role="alert">
          {problem}
        </div>
      )}
      {found?.webhooks.length === 0 && (
        <div class="notice">
          There is no webhook yet. <code>shardyard webhook add https://…</code> makes one, and shows its secret.
        </div>
      )}
      {found?.webhooks.map((webhook) => (
        <WebhookPart key={webhook.id} webhook={webhook} look={look} />
      ))}
    </>
  );
}

function standing(webhook: Webhook): [string, string] {
  if (!webhook.active) return ["cancelled", "not active"];
  if (webhook.failing_since) return ["failed", `fails since ${clock(webhook.failing_since)}`];
  return webhook.delivered_at ? ["succeeded", "works"] : ["queued", "has sent nothing yet"];
}

function WebhookPart(props: { webhook: Webhook; look: Look }) {
  const { webhook } = props;
  const [open, setOpen] = useState(false);
  const path = `/v1/webhooks/${webhook.id}`;
  const [state, words] = standing(webhook);
  const act = (what: () => Promise<unknown>) =>
    attempt(async () => {
      await what();
      await props.look(true);
    });
  const test = () =>
    act(async () => {
      await post(`${path}/test`);
      setOpen(true);
    });
  return (
    <section class="panel webhook">
      <div class="row">
        <h2>
          <bdi>{webhook.name || webhook.id}</bdi>
        </h2>
        <span class={`state ${state}`}>{words}</span>
        {may("submit") && (
          <button disabled={!webhook.active} onClick={test}>
            Send a test
          </button>
        )}
        {may("submit") && (
          <button onClick={() => act(() => call("PATCH", path, { active: !webhook.active }))}>
            {webhook.active ? "Switch off" : "Switch on"}
          </button>
        )}
      </div>
      <dl class="facts">
        <dt>goes to</dt>
        <dd>
          <bdi>
            {webhook.repo
              ? `${webhook.repo} at ${webhook.url}`
              : webhook.to?.length
                ? webhook.to.join(", ")
                : webhook.url}
          </bdi>{" "}
          <span class="label">{webhook.format}</span>
        </dd>
        <dt>events</dt>
        <dd>
          {webhook.events.map((kind) => (
            <span key={kind} class="label">
              {kind}
            </span>
          ))}
        </dd>
        <dt>last delivery</dt>
        <dd>{clock(webhook.delivered_at)}</dd>
        {webhook.problem && webhook.failing_since && (
          <>
            <dt>problem</dt>
            <dd class="bad" dir="auto">
              {webhook.problem}
            </dd>
          </>
        )}
        <dt>deliveries</dt>
        <dd>
          {webhook.waiting ? `${plural(webhook.waiting, "delivery", "deliveries")} wait` : "none waits"},{" "}
          {webhook.dead ? `${plural(webhook.dead, "delivery", "deliveries")} given up` : "none given up"}
          {webhook.missed ? `; ${plural(webhook.missed, "event")} not stored for want of room` : ""}
        </dd>
      </dl>
      <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>What was sent</summary>
        {open && <Deliveries webhook={webhook} look={props.look} />}
      </details>
    </section>
  );
}

function Deliveries(props: { webhook: Webhook; look: Look }) {
  const [shown, setShown] = useState<string>(props.webhook.dead ? "dead" : "all");
  return (
    <>
      <div class="row">
        <span class="switch" role="group" aria-label="Which deliveries">
          {SHOWS.map(([state, title]) => (
            <button key={state} aria-pressed={shown === state} onClick={() => setShown(state)}>
              {title}
            </button>
          ))}
        </span>
      </div>
      <DeliveryTable key={shown} webhook={props.webhook} state={shown} look={props.look} />
    </>
  );
}

function DeliveryTable(props: { webhook: Webhook; state: string; look: Look }) {
  const path = `/v1/webhooks/${props.webhook.id}/deliveries`;
  const [found, problem, look] = useLooking(() =>
    get<{ deliveries: Delivery[] }>(`${path}?state=${props.state}&limit=${SHOWN}`),
  );
  const again = (delivery: Delivery) =>
    attempt(async () => {
      await post(`${path}/${encodeURIComponent(delivery.id)}/redeliver`);
      await Promise.all([look(true), props.look(true)]);
    });
  if (problem)
    return (
      <div class="notice bad" role="alert">
        {problem}
      </div>
    );
  if (!found) return null;
  if (!found.deliveries.length) return <p class="muted">None.</p>;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Deliveries">
      <table class="deliveries">
        <thead>
          <tr>
            <th>When</th>
            <th>Event</th>
            <th>About</th>
            <th>State</th>
            <th>Problem</th>
            <th>
              <span class="unseen">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {found.deliveries.map((each) => (
            <tr key={each.id}>
              <td>{clock(each.created_at)}</td>
              <td>{each.kind}</td>
              <td>
                {each.data.id ? (
                  <Link to={`/jobs/${each.data.id}`}>
                    <bdi>{each.data.name || each.data.id}</bdi>
                  </Link>
                ) : (
                  <bdi>{each.data.node ?? ""}</bdi>
                )}
              </td>
              <td>
                <span class={`state ${STANDS[each.state][0]}`}>{STANDS[each.state][1]}</span>
                {each.tries > 1 ? ` after ${plural(each.tries, "try", "tries")}` : ""}
              </td>
              <td class="problem" dir="auto">
                {each.problem}
              </td>
              <td class="does">
                {may("submit") && each.state !== "waiting" && (
                  <button
                    class="plain"
                    aria-label={`Send ${each.kind} of ${clock(each.created_at)} again`}
                    onClick={() => again(each)}
                  >
                    send again
                  </button>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {found.deliveries.length === SHOWN && (
        <p class="small muted">
          The newest {SHOWN}; <code>shardyard webhook deliveries</code> lists more.
        </p>
      )}
    </div>
  );
}
