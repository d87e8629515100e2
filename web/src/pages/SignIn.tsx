import { useEffect, useState } from "preact/hooks";

import { get, me, Problem, post, type SignInWays, whoAmI } from "../api";
import { go, place } from "../router";

export function SignInPage() {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const [provider, setProvider] = useState("");
  useEffect(() => {
    get<SignInWays>("/v1/sign-in").then(
      (ways) => setProvider(ways.single_sign_on),
      () => undefined, // a token does without it
    );
  }, []);
  useEffect(() => {
    const code = codeOf(window.location.hash);
    if (!code) return;
    window.history.replaceState(null, "", window.location.pathname); // it is used up
    void signIn({ code });
  }, []);
  const submit = (event: Event) => {
    event.preventDefault();
    return signIn({ token: token.trim() });
  };
  const signIn = async (by: { token: string } | { code: string }) => {
    setBusy(true);
    try {
      await post("/v1/sign-in", by);
      await whoAmI();
      if (me.value && place.value.pathname === "/sign-in") go("/", "replace");
    } catch (error) {
      setProblem(error instanceof Problem ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <main class="sign-in">
      <form class="panel" onSubmit={submit}>
        <h1>Shardyard</h1>
        <label for="token">Access token</label>
        <input
          id="token"
          type="password"
          autocomplete="current-password"
          required
          maxLength={512}
          value={token}
          autofocus
          onInput={(event) => setToken(event.currentTarget.value)}
        />
        {problem && (
          <div class="notice bad" role="alert">
            {problem}
          </div>
        )}
        <div class="row">
          <button class="main" disabled={busy}>
            Sign in
          </button>
          {provider && (
            <a class="button" href={singleSignOn()}>
              Continue with {provider}
            </a>
          )}
        </div>
        <p class="muted">
          <code>shardyard up</code> prints a link that signs you in, and which file holds the operator's token;{" "}
          <code>shardyard token create</code> makes others. You stay signed in on this browser for twelve hours
          {provider && ", or by single sign-on for as long as the operator has set"}.
        </p>
      </form>
    </main>
  );
}

/** The code of a sign-in link. It stands where browsers send it nowhere, and so no log has it. */
const codeOf = (hash: string): string => new URLSearchParams(hash.replace(/^#/, "")).get("code") ?? "";

/** Leads to the identity provider, and back to the page that is shown when a session ends. */
function singleSignOn(): string {
  const { pathname, search } = place.value;
  return `/v1/sign-in/oidc?next=${encodeURIComponent(pathname === "/sign-in" ? "/" : pathname + search)}`;
}
