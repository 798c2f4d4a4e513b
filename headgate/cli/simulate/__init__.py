"""`headgate simulate`: its options, the runs that follow from them, and its output."""
