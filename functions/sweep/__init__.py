"""headgate-sweep: the periodic truth behind all hints."""
