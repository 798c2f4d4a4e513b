"""What commands share: their options, their output, their exit codes."""
