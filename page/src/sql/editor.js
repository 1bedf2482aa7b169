// The editor of queries: CodeMirror with SQL's syntax and completion. Loaded on demand.
//
// It is in a shadow root. There CodeMirror uses constructed style sheets, which the content security policy allows, instead
// of style elements.

import { autocompletion, acceptCompletion, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { keywordCompletionSource, SQLDialect, sql } from "@codemirror/lang-sql";
import { bracketMatching, HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { EditorState, Prec } from "@codemirror/state";
import { EditorView, keymap, placeholder } from "@codemirror/view";
import { tags } from "@lezer/highlight";

/** DuckDB's words, without those that usually name a column, such as "name", "type" or "value". */
const DUCKDB = SQLDialect.define({
  keywords: `all and anti any as asc asof at between by case cast collate columns cross cube current_date current_timestamp desc
    describe distinct else end escape except exclude exists explain extract false fetch filter first following for from full
    group grouping having ilike in inner intersect interval into is isnull join lateral left like limit map natural not notnull
    null nulls offset on only or order outer over partition pivot positional preceding qualify range recursive replace right
    rollup rows sample select semi sets show similar some struct summarize table then to true try_cast unbounded union unnest
    unpivot using values when where window with`,
  types: `bigint blob bool boolean date decimal double float hugeint int integer json real smallint text time timestamp
    timestamptz tinyint ubigint uinteger usmallint utinyint uuid varchar`,
  doubleDollarQuotedStrings: true,
});
const COLOURS = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--accent)", fontWeight: "600" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--good)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--warn)" },
  { tag: tags.comment, color: "var(--quiet)", fontStyle: "italic" },
  { tag: tags.typeName, color: "var(--accent)" },
]);
const THEME = EditorView.theme({
  "&": { fontSize: "0.95rem", color: "var(--text)", backgroundColor: "var(--card)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55", maxHeight: "24rem" },
  ".cm-content": { minHeight: "8rem", padding: "0.7rem 0.2rem", caretColor: "var(--text)" },
  ".cm-placeholder": { color: "var(--quiet)" },
  ".cm-tooltip": { backgroundColor: "var(--card)", color: "var(--text)", border: "1px solid var(--line)", borderRadius: "8px", boxShadow: "var(--shade)" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--on-accent)" },
  ".cm-completionDetail": { color: "inherit", opacity: "0.75", fontStyle: "normal" },
  ".cm-matchingBracket": { backgroundColor: "var(--accent-ground) !important" },
});

/** `complete(path, text)` returns names below a path, as `{label, detail, type}`; `run()` is called on Ctrl+Enter. */
export function createEditor({ host, text, label, hint, complete, run, changed }) {
  const root = host.attachShadow({ mode: "open" });
  const names = async (context) => {
    const word = context.matchBefore(/[\p{L}\p{N}_."]*/u);
    if (!word || (word.from === word.to && !context.explicit)) return null;
    const path = word.text.replaceAll('"', "").split(".");
    const own = path.pop();
    const options = await complete(path, context.state.doc.toString());
    return options.length ? { from: word.to - own.length, options, validFor: /^[\p{L}\p{N}_]*$/u } : null;
  };
  const state = EditorState.create({
    doc: text,
    extensions: [
      Prec.highest(keymap.of([{ key: "Mod-Enter", run: () => { run(); return true; } }, { key: "Tab", run: acceptCompletion }])),
      history(), bracketMatching(), placeholder(hint), EditorView.lineWrapping, THEME, syntaxHighlighting(COLOURS),
      sql({ dialect: DUCKDB }).language,
      autocompletion({ override: [names, keywordCompletionSource(DUCKDB, true)], icons: false }),
      keymap.of([...completionKeymap, ...defaultKeymap, ...historyKeymap]),
      EditorView.contentAttributes.of({ "aria-label": label }),
      EditorView.updateListener.of((update) => { if (update.docChanged) changed(update.state.doc.toString()); }),
    ],
  });
  const view = new EditorView({ state, parent: root, root });
  return {
    focus: () => view.focus(),
    replace: (query) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: query } }),
  };
}
