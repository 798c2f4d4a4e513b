"""What the stores keep: records, and the ports that keep them. Pure."""
