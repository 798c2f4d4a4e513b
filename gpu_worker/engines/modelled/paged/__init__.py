"""A paged engine as a pure model: KV blocks, copies, preemption and step times, without a clock and without IO."""
