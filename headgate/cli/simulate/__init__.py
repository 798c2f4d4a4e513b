"""`headgate simulate`: its options, the runs that they ask for, and what it prints."""
