"""The orders of the gate: which waiting call is dispatched next, and what a dispatch charges its tenant."""
