"""headgate-sweep: repairs periodically what hints and messages missed."""
