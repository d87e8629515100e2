"""The style sheet of the page around the pictures. It has no `<` and no `&`, so HTML and XML read it alike."""

from shardyard.render.svg.chart_css import FONT, chart_sheet
from shardyard.render.svg.palette import DARK, LIGHT, MEASURES, ColourTheme


def page_sheet() -> str:
    return "\n".join(
        [
            _FIXED,
            *_map_switch_rules(),
            _theme_variables(LIGHT),
            _DARK.replace("VARIABLES", _theme_variables(DARK)),
            chart_sheet(),
        ]
    )


def _theme_variables(theme: ColourTheme) -> str:
    names = ("ground", "panel", "ink", "muted", "rule", "slow", "output", "warning", "info", "idle", "idle_line")
    pairs = ";".join(f"--{name.replace('_', '-')}:{getattr(theme, name)}" for name in names)
    return f":root{{{pairs}}}"


def _map_switch_rules() -> list[str]:
    """Rules that show the map whose radio button is on, without a script."""
    return [f"#by-{by}:checked~.maps .by-{by}{{display:block}}" for by in MEASURES]


#: On paper everything is light, whatever the screen is.
_DARK = "@media screen and (prefers-color-scheme:dark){VARIABLES}"

_FIXED = f"""*{{box-sizing:border-box}}
html{{color-scheme:light dark;-webkit-text-size-adjust:100%}}
body{{margin:0 auto;max-width:1080px;padding:24px 20px 48px;background:var(--ground);color:var(--ink);
font:15px/1.5 {FONT}}}
h1{{font-size:26px;line-height:1.25;margin:2px 0 4px;overflow-wrap:anywhere}}
h2{{font-size:17px;margin:30px 0 10px}}
h3{{font-size:14px;margin:18px 0 6px}}
p{{margin:4px 0}}
.kicker,.muted,footer{{color:var(--muted)}}
.kicker{{font-size:13px;letter-spacing:.02em}}
.facts{{display:flex;flex-wrap:wrap;gap:2px 18px;color:var(--muted);font-size:14px}}
.facts b{{color:var(--ink);font-weight:600}}
.labels span{{display:inline-block;border:1px solid var(--rule);border-radius:9px;padding:0 8px;margin:4px 6px 0 0;
font-size:13px;max-width:100%;overflow-wrap:anywhere}}
.banner{{border:1px solid var(--warning);border-radius:8px;padding:8px 12px;margin:12px 0 0}}
.verdict{{font-weight:600;padding:3px 0 3px 12px;border-left:5px solid var(--rule);margin:6px 0}}
.verdict.idle{{border-left-color:transparent;border-image:repeating-linear-gradient(135deg,var(--muted) 0 2px,
var(--idle) 2px 5px) 5}}
.verdict.slow{{border-left-color:var(--slow);color:var(--slow)}}
.finding{{background:var(--panel);border:1px solid var(--rule);border-left:4px solid var(--info);border-radius:8px;
padding:6px 14px;margin:7px 0;overflow-wrap:anywhere;break-inside:avoid}}
.finding.warning{{border-left-color:var(--warning)}}
.finding p{{margin:2px 0}}
.finding .code{{float:right;margin-left:16px;font-size:13px;color:var(--muted)}}
.finding .code b{{color:var(--info)}}
.finding.warning .code b{{color:var(--warning)}}
.finding .change b{{font-weight:600}}
.scroll{{overflow-x:auto;padding-bottom:2px}}
.scroll svg,.charts svg{{display:block}}
.narrow,.map{{display:none}}
fieldset{{border:0;margin:0;padding:0;min-width:0}}
legend{{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}}
input.by{{position:absolute;opacity:0;pointer-events:none}}
label.by{{display:inline-block;border:1px solid var(--rule);padding:3px 12px;margin:0 0 12px -1px;
cursor:pointer;font-size:14px}}
label.by:first-of-type{{border-radius:7px 0 0 7px;margin-left:0}}
label.by:last-of-type{{border-radius:0 7px 7px 0}}
input.by:checked+label.by{{background:var(--ink);color:var(--ground);border-color:var(--ink)}}
input.by:focus-visible+label.by{{outline:3px solid var(--info);outline-offset:2px}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:8px;margin:14px 0 0}}
.tiles div{{background:var(--panel);border:1px solid var(--rule);border-radius:8px;padding:7px 12px}}
.tiles dt{{font-size:12.5px;color:var(--muted)}}
.tiles dd{{margin:0;font-size:18px;font-weight:600}}
.tiles dd.none{{font-size:14px;font-weight:400;color:var(--muted)}}
table{{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}}
th,td{{text-align:start;padding:4px 14px 4px 0;border-bottom:1px solid var(--rule);vertical-align:top}}
th{{font-weight:500;color:var(--muted);white-space:nowrap}}
.scroll td,td code{{white-space:nowrap}}
td.n,th.n{{text-align:end;white-space:nowrap}}
td .mark{{display:inline-block;font-weight:600;border-radius:4px;padding:0 6px;margin-right:4px;white-space:nowrap}}
.mark.idle{{background:repeating-linear-gradient(135deg,var(--idle) 0 4px,var(--idle-line) 4px 6px)}}
.mark.slow{{border:2px solid var(--slow);color:var(--slow)}}
.mark.output{{color:var(--output);border-bottom:3px solid var(--output);border-radius:0}}
.charts{{display:flex;flex-wrap:wrap;gap:14px 24px}}
pre{{background:var(--panel);border:1px solid var(--rule);border-radius:8px;padding:12px 14px;overflow-x:auto;
font:13px/1.45 ui-monospace,'SF Mono','DejaVu Sans Mono',monospace;white-space:pre-wrap;overflow-wrap:anywhere}}
code{{font:13px ui-monospace,'SF Mono','DejaVu Sans Mono',monospace}}
.notes td{{overflow-wrap:anywhere}}.notes code{{white-space:normal}}
.sides{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:12px 36px}}
.sides section{{min-width:0}}
footer{{margin-top:36px;font-size:13px}}
@media (max-width:640px){{body{{padding:14px 14px 32px}}.wide{{display:none}}.narrow{{display:block}}
.finding .code{{float:none;margin:0}}
h1{{font-size:22px}}.charts svg{{max-width:100%;height:auto}}label.by{{padding:3px 9px}}}}
@media print{{body{{max-width:none;padding:0;font-size:12px}}label.by{{display:none}}section{{break-inside:avoid}}
.wide svg{{max-width:100%;height:auto}}pre{{white-space:pre-wrap}}*{{print-color-adjust:exact;
-webkit-print-color-adjust:exact}}}}"""
