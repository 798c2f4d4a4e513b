"""An engine profile from the log of a server: the log, the step times that it shows, and how well they repeat it."""
