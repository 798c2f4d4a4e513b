"""Every field of a request: what the gate does with it (the table), and the parser and the page that read the table."""
