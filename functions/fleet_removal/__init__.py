"""headgate-remove-fleet: deletes a pool's instances when its part of the stack is deleted."""
