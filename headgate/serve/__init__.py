"""`headgate serve`: front, gate and workers on one machine, with SQLite, without AWS and without an emulator of AWS."""
