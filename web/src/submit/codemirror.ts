// The editor of specs: JSON with completion and marks. It lives in a shadow tree, whose styles are objects of the script:
// the page's Content-Security-Policy takes no others.

import {
  acceptCompletion,
  autocompletion,
  type CompletionContext,
  type CompletionResult,
  completionKeymap,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { json } from "@codemirror/lang-json";
import { bracketMatching, foldGutter, HighlightStyle, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { type Diagnostic, lintGutter, setDiagnostics } from "@codemirror/lint";
import { EditorState } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { type Grammar, offersAt } from "./completion";
import type { Mark } from "./Editor";

export interface Handle {
  view: EditorView;
  mark: (marks: readonly Mark[]) => void;
  set: (text: string) => void;
  show: (from: number, to: number) => void;
  destroy: () => void;
}

const THEME = EditorView.theme({
  "&": { height: "100%", fontSize: "12.5px", color: "var(--ink)", backgroundColor: "var(--ground)" },
  ".cm-scroller": { fontFamily: 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace', lineHeight: "1.5" },
  ".cm-content": { caretColor: "var(--ink)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-gutters": { backgroundColor: "var(--panel)", color: "var(--muted)", borderRight: "1px solid var(--rule)" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--track) 50%, transparent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "var(--l1)",
  },
  ".cm-tooltip": {
    backgroundColor: "var(--ground)",
    color: "var(--ink)",
    border: "1px solid var(--rule)",
    borderRadius: "6px",
  },
  ".cm-tooltip-autocomplete > ul > li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--ground)" },
  ".cm-completionDetail": { color: "var(--muted)" },
  "li[aria-selected] .cm-completionDetail": { color: "inherit" },
  ".cm-diagnostic-error": { borderLeft: "4px solid var(--bad)" },
});

const COLOURS = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--accent)" },
  { tag: tags.string, color: "var(--good)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--warning)" },
]);

interface Options {
  text: string;
  change: (text: string) => void;
  submit: () => void;
  grammar: () => Grammar | null;
}

export function mount(host: HTMLElement, options: Options): Handle {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const complete = (context: CompletionContext): CompletionResult | null => {
    const grammar = options.grammar();
    const found = grammar && offersAt(grammar, context.state.doc.toString(), context.pos);
    if (!found || (!context.explicit && !context.matchBefore(/["\w]+|[:{,]\s*/))) return null;
    const typed = context.state.sliceDoc(found.from, context.pos).replaceAll('"', "").toLowerCase();
    const offers = found.offers.filter((offer) => offer.label.toLowerCase().includes(typed));
    if (!offers.length) return null;
    return {
      from: found.from,
      filter: false,
      options: offers.map((offer) => ({
        label: offer.label,
        detail: offer.detail,
        ...(offer.info && { info: offer.info }),
        apply: (view: EditorView, _: unknown, from: number, to: number) => insert(view, offer.insert, from, to),
      })),
    };
  };
  const submit = () => {
    options.submit();
    return true;
  };
  const view = new EditorView({
    parent: root,
    root,
    state: EditorState.create({
      doc: options.text,
      extensions: [
        keymap.of([
          { key: "Mod-Enter", run: submit },
          { key: "Tab", run: acceptCompletion },
          ...completionKeymap,
          ...defaultKeymap,
          ...historyKeymap,
        ]),
        keymap.of([{ key: "Escape", run: leave }, indentWithTab]),
        lineNumbers(),
        foldGutter(),
        lintGutter(),
        history(),
        drawSelection(),
        indentOnInput(),
        bracketMatching(),
        highlightActiveLine(),
        json(),
        syntaxHighlighting(COLOURS),
        autocompletion({ override: [complete], activateOnTyping: true }),
        EditorState.tabSize.of(2),
        THEME,
        EditorView.contentAttributes.of({ "aria-label": "Job spec as JSON", tabindex: "0" }),
        EditorView.updateListener.of((update) => update.docChanged && options.change(update.state.doc.toString())),
      ],
    }),
  });
  return {
    view,
    mark: (marks) => view.dispatch(setDiagnostics(view.state, diagnosticsOf(marks, view.state.doc.length))),
    set: (text) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } }),
    show: (from, to) => {
      const end = view.state.doc.length;
      view.dispatch({ selection: { anchor: Math.min(from, end), head: Math.min(to, end) }, scrollIntoView: true });
      view.focus();
    },
    destroy: () => view.destroy(),
  };
}

/** Tab indents; Escape, then Tab, leaves the field for those who have no mouse. */
function leave(view: EditorView): boolean {
  view.setTabFocusMode(2000);
  return true;
}

/** A closing quotation mark that stands behind is replaced as well. */
function insert(view: EditorView, text: string, from: number, to: number): void {
  const end = view.state.sliceDoc(to, to + 1) === '"' && text.startsWith('"') ? to + 1 : to;
  const inner = /"(?="$|"[}\]]*$)|\{(?=\}$)|\[(?=\]$)/.exec(text.slice(text.indexOf(":") + 1));
  const within = inner && text.includes(":") ? text.indexOf(":") + 2 + inner.index : text.length;
  view.dispatch({
    changes: { from, to: end, insert: text },
    selection: { anchor: from + within },
    userEvent: "input.complete",
  });
}

const diagnosticsOf = (marks: readonly Mark[], length: number): Diagnostic[] =>
  marks.map(({ place, words }) => ({
    from: Math.min(place.from, length),
    to: Math.min(Math.max(place.to, place.from), length),
    severity: "error",
    message: words,
  }));
