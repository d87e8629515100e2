import { signal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";

import { me, post, whoAmI } from "./api";
import { Keys } from "./frame/Keys";
import { Offline } from "./frame/Offline";
import { watchForEnds } from "./frame/watched";
import { ComparePage } from "./pages/Compare";
import { DevicePage } from "./pages/Device";
import { GroupsPage } from "./pages/Groups";
import { JobPage } from "./pages/Job";
import { isJobId, JobByName } from "./pages/JobByName";
import { JobsPage } from "./pages/Jobs";
import { NodesPage } from "./pages/Nodes";
import { QuotaPage } from "./pages/Quota";
import { SignInPage } from "./pages/SignIn";
import { SubmitPage } from "./pages/Submit";
import { WebhooksPage } from "./pages/Webhooks";
import { go, Link, place } from "./router";
import "./styles.css";
import { attempt, Toast } from "./toast";

const PAGES = [
  ["/", "Jobs"],
  ["/submit", "Submit"],
  ["/compare", "Compare"],
  ["/groups", "Groups"],
  ["/nodes", "Devices"],
  ["/quota", "Quota"],
  ["/webhooks", "Webhooks"],
] as const;

const unreachable = signal(false);

function Page() {
  const path = place.value.pathname;
  const job = /^\/jobs\/([^/]+)$/.exec(path)?.[1];
  if (job && !isJobId(job)) return <JobByName key={job} name={decodeURIComponent(job)} />;
  if (job) return <JobPage key={job} id={job} />;
  const device = /^\/devices\/([^/]+)$/.exec(path)?.[1];
  if (device) return <DevicePage key={device} id={decodeURIComponent(device)} />;
  if (path === "/submit") return <SubmitPage />;
  if (path === "/compare") return <ComparePage />;
  if (path === "/groups") return <GroupsPage />;
  if (path === "/nodes") return <NodesPage />;
  if (path === "/quota") return <QuotaPage />;
  if (path === "/webhooks") return <WebhooksPage />;
  return <JobsPage />;
}

function App() {
  useEffect(() => {
    const ask = () =>
      whoAmI().then(
        () => (unreachable.value = false),
        () => {
          unreachable.value = true;
          setTimeout(ask, 2000);
        },
      );
    void ask();
    return watchForEnds();
  }, []);
  if (me.value === undefined)
    return unreachable.value ? <main>The service does not answer; trying again …</main> : null;
  if (me.value === null || place.value.pathname === "/sign-in") return <SignInPage />;
  const path = place.value.pathname;
  return (
    <>
      <a class="skip" href="#content">
        Skip to content
      </a>
      <header class="top">
        <Link to="/" class="brand">
          <img src="/assets/icon.svg" alt="" />
          Shardyard
        </Link>
        <nav aria-label="Pages">
          {PAGES.map(([to, title]) => (
            <Link
              key={to}
              to={to}
              current={
                path === to ||
                (to === "/" && path.startsWith("/jobs/")) ||
                (to === "/nodes" && path.startsWith("/devices/"))
              }
            >
              {title}
            </Link>
          ))}
        </nav>
        <div class="who">
          <Keys />
          <span title={`token ${me.value.token}`}>{me.value.tenant}</span>
          <button class="plain" onClick={signOut}>
            Sign out
          </button>
        </div>
      </header>
      <main id="content">
        <Page />
      </main>
      <Offline />
      <Toast />
    </>
  );
}

const signOut = () =>
  attempt(async () => {
    await post("/v1/sign-out");
    me.value = null;
    go("/");
  });

render(<App />, document.getElementById("page")!);
