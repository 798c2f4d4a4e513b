"""The page's style sheet, and the policy that lets a browser use it and nothing else: no script, no other source."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1a1a1a; --quiet: #555555; --line: #c8c8c8;
  --accent: #0b57a4; --bad: #a61b1b; --head: #f2f4f7; }
@media (prefers-color-scheme: dark) { :root { --back: #14161a; --text: #e6e6e6; --quiet: #a9adb5; --line: #40454e;
  --accent: #7ab7ff; --bad: #ff8f8f; --head: #1f232a; } }
* { box-sizing: border-box; }
body { background: var(--back); color: var(--text); font: 15px/1.45 system-ui, sans-serif; margin: 0 auto;
  max-width: 76rem; padding: 1rem; }
header, .bar-of-page { align-items: baseline; display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem; }
a { color: var(--accent); } p { margin: .4rem 0; }
.quiet, caption, dt { color: var(--quiet); }
caption { font-size: .85rem; padding-bottom: .2rem; text-align: left; }
.problem { border: 2px solid var(--bad); border-radius: .3rem; margin: .8rem 0; padding: .4rem .8rem; }
.bad { color: var(--bad); font-weight: 600; }
dl { display: grid; gap: .6rem; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); margin: 1rem 0; }
dl div { background: var(--head); border-radius: .3rem; padding: .4rem .7rem; }
dd { font-size: 1.1rem; font-variant-numeric: tabular-nums; margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: middle;
  white-space: nowrap; }
thead th { background: var(--head); font-weight: 600; }
tbody th { font-weight: 600; }
.number { font-variant-numeric: tabular-nums; text-align: right; }
.bar { fill: var(--accent); } .now { fill-opacity: .55; }
.level { stroke: var(--bad); stroke-dasharray: 3 2; stroke-width: 1.5; }
input, button { background: var(--back); border: 1px solid var(--quiet); border-radius: .3rem; color: var(--text);
  font: inherit; padding: .25rem .6rem; }
form { display: inline-flex; flex-wrap: wrap; gap: .4rem; }
"""

_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_DIGEST}'; img-src data:; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
