"""How the HTML page looks, in light and in dark. The one rule: it names no font, picture or sheet from elsewhere."""

from typing import Final

STYLE: Final = """
:root{--page:#f6f6f4;--card:#fff;--ink:#1c1d20;--soft:#6a6d75;--line:#dfdfda;--code:#f2f2ee;
--user:#2f7d4f;--assistant:#2c5fb3;--system:#97701a;--tool:#8b4a9e;--bad:#b3342c}
@media (prefers-color-scheme:dark){:root{--page:#16171a;--card:#1f2125;--ink:#e6e6e3;--soft:#9a9ea8;--line:#33363c;
--code:#17181b;--user:#6fc08f;--assistant:#83adf0;--system:#d9b25c;--tool:#cb93db;--bad:#f08a80}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main{max-width:52rem;margin:0 auto;padding:2rem 1rem 3rem}
header h1{font-size:1.5rem;line-height:1.25;margin:0 0 .25rem;overflow-wrap:anywhere}
.facts{color:var(--soft);font-size:.85rem;margin:0}
.facts span+span::before{content:" · "}
header{padding-bottom:1rem}
article{background:var(--card);border:1px solid var(--line);border-left:4px solid var(--soft);border-radius:6px;
margin:.9rem 0;padding:.75rem 1rem}
article.user{border-left-color:var(--user)}article.user .who b{color:var(--user)}
article.assistant{border-left-color:var(--assistant)}article.assistant .who b{color:var(--assistant)}
article.system{border-left-color:var(--system)}article.system .who b{color:var(--system)}
article.tool{border-left-color:var(--tool)}article.tool .who b{color:var(--tool)}
.who{display:flex;flex-wrap:wrap;gap:.1rem .75rem;align-items:baseline;justify-content:space-between;
margin-bottom:.35rem}
.words{overflow-wrap:anywhere}
.words>:first-child{margin-top:0}.words>:last-child{margin-bottom:0}
.words h1,.words h2,.words h3,.words h4,.words h5,.words h6{font-size:1.05rem;margin:1rem 0 .4rem}
.words p,.words ul,.words ol{margin:.5rem 0}.words ul,.words ol{padding-left:1.5rem}
.words blockquote{margin:.5rem 0;padding-left:.9rem;border-left:3px solid var(--line);color:var(--soft)}
.words table{border-collapse:collapse;display:block;overflow-x:auto;margin:.6rem 0}
.words td,.words th{border:1px solid var(--line);padding:.25rem .6rem;text-align:left}
a{color:var(--assistant)}
code,pre,.name{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.86rem}
code{background:var(--code);border-radius:4px;padding:.1em .3em;overflow-wrap:anywhere}
pre{background:var(--code);border:1px solid var(--line);border-radius:6px;padding:.6rem .8rem;margin:.4rem 0;
white-space:pre-wrap;overflow-wrap:anywhere}
pre code{background:none;padding:0}
.call{border:1px solid var(--line);border-radius:6px;padding:.5rem .8rem;margin:.6rem 0}
.call .name{color:var(--tool);font-weight:600;overflow-wrap:anywhere}.call .name.failed{color:var(--bad)}
.call pre+.name,.call details+.name{margin-top:.5rem}
details{margin:.5rem 0;border:1px dashed var(--line);border-radius:6px;padding:.35rem .8rem}
summary{cursor:pointer;color:var(--soft);font-size:.88rem;overflow-wrap:anywhere}
summary i{font-style:normal;opacity:.8}details[open] summary{margin-bottom:.4rem}details[open] summary i{display:none}
details.thinking .words{color:var(--soft)}
.aside{color:var(--soft);font-style:italic;font-size:.9rem;margin:.4rem 0;overflow-wrap:anywhere}
img,video{max-width:100%;max-height:32rem;border-radius:6px;display:block;margin:.5rem 0}audio{width:100%}
@media print{body{background:#fff}article{break-inside:avoid}}
"""
