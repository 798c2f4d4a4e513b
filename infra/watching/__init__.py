"""What an operator sees: alarms, dashboard, logs."""
