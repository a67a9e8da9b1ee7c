"""The report's style sheet: light and dark as the reader's system prefers, one column on a phone, two on a desk."""

from runners.report.code import CSS as CODE_CSS

CSS = (
    """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1c2330;--soft:#5a6475;--grid:#e6e9ee;--edge:#d9dee6;
--c0:#2563eb;--c1:#d9660a;--c2:#0b8f6a;--c3:#8b45d6;--c4:#c2255c;--c5:#5f6b7a;
--good:#0a7a50;--good-bg:#e0f4ea;--bad:#b3261e;--bad-bg:#fbe6e4;--plain-bg:#edf0f4;
--code:#f8f9fb;--code-keyword:#8b2fc9;--code-string:#0a7a50;--code-comment:#6b7686;--code-number:#b45309;
--code-name:#1d4ed8;--code-decorator:#b3261e}
@media (prefers-color-scheme:dark){:root{--page:#12151b;--card:#1a1f28;--ink:#e4e8ef;--soft:#9aa5b5;--grid:#2a313d;
--edge:#2f3744;--c0:#6ea8fe;--c1:#f5a04c;--c2:#45d0a0;--c3:#c49bff;--c4:#ff7fa8;--c5:#a3aebd;
--good:#5fdca5;--good-bg:#14372a;--bad:#ff938a;--bad-bg:#43201e;--plain-bg:#28303c;
--code:#151a22;--code-keyword:#d2a8ff;--code-string:#7ee2b8;--code-comment:#8592a3;--code-number:#f5b56b;
--code-name:#8ab8ff;--code-decorator:#ff938a}}
*{box-sizing:border-box}
body{margin:0;
background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1240px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:26px;margin:0 0 2px;letter-spacing:-.01em}
h2{font-size:18px;margin:36px 0 10px}
h3{font-size:14px;margin:0 0 6px;overflow-wrap:anywhere}
p{margin:4px 0 10px}
.soft,.absent,figcaption{color:var(--soft)}
.small{font-size:13px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px;margin:18px 0}
.tile,.card{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:12px 14px;min-width:0}
.tile b{display:block;font-size:23px;line-height:1.25;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}
.charts{display:grid;grid-template-columns:1fr 1fr;gap:12px}
figure{margin:0}
figcaption{font-size:13px;margin-bottom:4px}
figcaption b{display:block;color:var(--ink);font-size:14px}
.legend{display:flex;flex-wrap:wrap;gap:0 16px;font-size:12.5px;color:var(--soft);padding:3px 0 4px}
.legend i{display:inline-block;width:18px;height:0;margin-right:6px;vertical-align:middle}
.legend i.faint{opacity:.6}
svg.chart{display:block;width:100%;height:auto}
svg.chart text{font:11.5px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--soft)}
.grid{stroke:var(--grid)}.axis{stroke:var(--soft)}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.line.faint{stroke-width:1;opacity:.45}
.mark{stroke:var(--c4);stroke-dasharray:2 3;stroke-width:1.5}
.limit{stroke:var(--soft);stroke-dasharray:5 4}
.hover{fill:transparent}.hover:hover{fill:var(--soft);fill-opacity:.13}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 12px;border-bottom:1px solid var(--grid);vertical-align:top}
th{font-weight:600;color:var(--soft);font-size:13px}
tr:last-child td{border-bottom:0}
td.n,th.n{text-align:right;white-space:nowrap}
th:first-child,td:first-child{padding-left:0}
td.key{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:13px;white-space:nowrap}
td.value{overflow-wrap:anywhere}
td small{color:var(--soft)}
.badge{display:inline-block;border-radius:99px;padding:1px 10px;font-size:13px;
background:var(--plain-bg);color:var(--soft)}
.good{color:var(--good)}.bad{color:var(--bad)}
.badge.good{background:var(--good-bg)}.badge.bad{background:var(--bad-bg)}
.pair{margin-bottom:14px}
.sides{display:grid;grid-template-columns:1fr 1fr;gap:12px}
.side{min-width:0}
.side p{margin:2px 0 6px}
.code{background:var(--code);border:1px solid var(--grid);border-radius:8px;padding:10px 12px;margin:6px 0 0;
overflow:auto;max-height:460px;font:12.5px/1.45 ui-monospace,Menlo,Consolas,monospace;tab-size:4}
.feedback{border-left:3px solid var(--edge);padding-left:9px;color:var(--soft);font-size:13px;white-space:pre-wrap;
overflow-wrap:anywhere;max-height:150px;overflow:auto}
summary{cursor:pointer;color:var(--soft);font-size:13px;padding:3px 0}
ul{margin:6px 0;padding-left:20px}
@media (max-width:820px){.charts,.sides{grid-template-columns:minmax(0,1fr)}}
@media (max-width:480px){main{padding:16px 10px 48px}.tiles{grid-template-columns:1fr 1fr}.tile b{font-size:19px}
h1{font-size:22px}th,td{padding:5px 6px}table{font-size:13px}
svg.chart text{font-size:14px}td small{display:block}}
"""
    + CODE_CSS
)
