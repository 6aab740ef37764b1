"""``report.html``: one self-contained page, no script, no network; figures are inline SVG."""
