"""What travels between a gate process and its clients, as bytes."""
