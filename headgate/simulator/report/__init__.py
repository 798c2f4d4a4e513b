"""One self-contained HTML page about runs: `headgate simulate --report FILE.html`."""
