"""Style and tables of the pages that evaluations write."""

import html

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff;
overflow-wrap:anywhere}
table{border-collapse:collapse;font-size:.85rem;display:block;overflow-x:auto}
td,th{padding:.25rem .6rem;border-bottom:1px solid #8884;text-align:left;white-space:nowrap}
td:first-child{white-space:normal;min-width:8rem;max-width:24rem}
img{max-width:100%}pre{overflow-x:auto;font-size:.8rem}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#151517}a{color:#8ab4f8}}
"""


def html_tables(text: str) -> str:
    """The Markdown of our tables as HTML."""
    parts, rows = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([html.escape(cell.strip()) for cell in line.strip("|").split("|")])
            continue
        if rows:
            head, body = rows[0], [row for row in rows[1:] if set("".join(row)) != {"-"}]
            cells = ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body]
            parts.append("<table><tr>" + "".join(f"<th>{c}</th>" for c in head) + "</tr>" + "".join(cells) + "</table>")
            rows = []
        if line.startswith("### "):
            parts.append(f"<h2>{html.escape(line[4:])}</h2>")
        elif line:
            parts.append(f"<p>{html.escape(line)}</p>")
    return "\n".join(parts)
