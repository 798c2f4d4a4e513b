"""The messages between a gate process and its clients, as bytes."""
