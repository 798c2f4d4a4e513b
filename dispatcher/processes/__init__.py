"""What the gate's processes share: assembly from the environment, secrets, identity, the sweep."""
