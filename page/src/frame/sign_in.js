// Sign-in screen, for a server that requires a token.

import { h, mark, shown } from "../dom.js";
import { note } from "../parts.js";

/** `use(token)` is called with the token; `error` is the server's answer to the previous token. */
export function signIn(use, error) {
  const token = h("input", { type: "password", id: "token", name: "token", autocomplete: "off", required: true, spellcheck: "false" });
  const form = h("form", { class: "card sign-in token", onsubmit: (event) => {
    event.preventDefault();
    use(token.value.trim());
  } },
  mark(),
  h("h1", { tabindex: "-1" }, "Sign in with a token"),
  h("p", { class: "quiet" }, "This lakehouse asks for an access token. Its operator gives you one."),
  error ? note("bad", shown(error.message)) : null,
  h("label", { for: "token" }, "Token"), token,
  h("button", { type: "submit", class: "main" }, "Sign in"),
  h("p", { class: "quiet small" }, "The token is kept for this browser tab and sent to this server only."));
  return { form, token };
}
