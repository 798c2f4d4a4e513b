"""What the worker does about its promises: request times, shedding, and when a refused request may come back."""
