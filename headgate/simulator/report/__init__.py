"""The self-contained HTML page about runs that `headgate simulate --report FILE.html` writes."""
