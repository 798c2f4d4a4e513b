"""`headgate serve`: front, gate and workers on one machine, durable in SQLite, without AWS and without an emulator."""
